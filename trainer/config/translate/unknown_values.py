"""Which flags are left out, or still to give, since a value that they need is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trainer.config.translate.result import Translation
from trainer.config.translate.rows import UNSET, Command

REWARDS = ("--remote_rm_url", "--reward", "--reward_pretrain")
"""Flags of which one is enough."""


def untold(command: Command, made: Translation) -> Iterator[str]:
    """Yield what a Python script does not tell, with all flags that are left out for it."""
    of = {sentence: name for name, sentence in command.unread.items()}
    for sentence in command.untold:
        ours = (
            f"--{one}"
            for one in made.left_out.get(of.get(sentence, ""), ())
            if one and one not in made.flags
        )
        more = [one for one in dict.fromkeys(ours) if one not in sentence]
        too = f". Left out for it: {', '.join(more)}" if more else ""
        too += f". Or give --{of[sentence]} VALUE behind the script" if more else ""
        yield f"{sentence}{too}"


def computed_from_open(made: Translation, given: Mapping[str, str]) -> Iterator[str]:
    """Yield which flags are left out since only the shell knows a number that they need."""
    told = {sentence.partition("=")[0] for sentence in made.lost}
    named = " ".join(made.needed)
    for name, flags in made.left_out.items():
        ours = [one for one in dict.fromkeys(flags) if one and one not in made.flags]
        more = [f"--{one}" for one in ours if f"--{one}:" not in named]
        if more and name in given and name not in told:
            value = given[name].replace(UNSET, "$")
            yield f"{', '.join(more)}: left out, since {name}={value} is known only where it runs"


def is_told(made: Translation, path: str) -> bool:
    """Return whether a sentence says already which value to give for a flag."""
    instead = REWARDS if path == REWARDS[0] else (path,)
    asked = re.compile(rf"(?:give|add) (?:{'|'.join(instead)})\b")
    return any(asked.search(sentence) for sentence in (*made.needed, *made.lost))
