"""What a translation gives: the flags, and sentences on all that they do not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Translation:
    """Our flags, and what became of each of theirs."""

    trainer: str
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """By spelling, in the order of the table."""
    by_default: set[str] = field(default_factory=set, init=False)
    """Spellings that say a default of theirs."""
    lost: list[str] = field(default_factory=list, init=False)
    """Sentences on what has no counterpart."""
    needed: list[str] = field(default_factory=list, init=False)
    """Sentences on what the command still lacks here."""
    conflicts: list[str] = field(default_factory=list, init=False)
    """Sentences on values that the trainer refuses, alone or together."""
    first: list[str] = field(default_factory=list, init=False)
    """Sentences on what has to be set before the command runs."""
    unseen: list[str] = field(default_factory=list, init=False)
    """Sentences on what data, script or machines decide, and the command does not tell."""
    warnings: list[str] = field(default_factory=list, init=False)
    """Sentences on what may be otherwise than the command's writer meant."""
    notes: list[str] = field(default_factory=list, init=False)
    """Sentences on flags that need no counterpart."""
    environment: dict[str, str] = field(default_factory=dict, init=False)
    left_out: dict[str, list[str]] = field(default_factory=dict, init=False)
    """A flag of theirs whose value cannot be read → our flags that are computed from it."""

    @property
    def words(self) -> list[str]:
        return [word for name, texts in self.flags.items() for word in flag_words(name, texts)]

    @property
    def is_whole(self) -> bool:
        return not (self.lost or self.needed or self.conflicts)


def flag_words(name: str, texts: Sequence[str]) -> list[str]:
    """Return the words of a flag; a value that begins as a flag does is behind `=`."""
    if any(text.startswith("--") for text in texts):
        return [f"--{name}={' '.join(texts)}"]
    return [f"--{name}", *texts]
