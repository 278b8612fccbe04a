"""Under which names a flag may be given, and which fields each name sets.

The field's own name is the flat spelling, OpenRLHF's before 0.11; `dotted` is that of 0.11. A flat
spelling that other flags follow sets all of them: `--adam_betas` both policy's and critic's,
`--actor.adam.betas` the policy's alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.config.schema import Fault, flags_of


@dataclass(frozen=True, slots=True)
class Given:
    """A value that the user gave: under which spelling, and in which file."""

    spelling: str
    texts: tuple[str, ...]
    file: str = ""
    """Empty: on the command line."""

    @property
    def label(self) -> str:
        return label(self.spelling, self.file)


def label(spelling: str, file: str = "") -> str:
    return f"{file}: {spelling}" if file else f"--{spelling}"


def spellings(config: type[Any]) -> dict[str, tuple[str, ...]]:
    """Spelling → names of the fields that it sets; the first is the one that it is named for."""
    found: dict[str, tuple[str, ...]] = {}
    for name, (_, about) in flags_of(config).items():
        for spelling in (name, *about.aliases, *about.dotted_spellings):
            assert spelling not in found, spelling
            found[spelling] = (name,)
    for name, (_, about) in flags_of(config).items():
        if about.follows:
            found[about.follows] += (name,)
    return found


def unknown(spelling: str, known: Iterable[str], file: str = "") -> Fault:
    """A fault that offers the nearest spelling."""
    near = difflib.get_close_matches(spelling.replace("-", "_"), list(known), 1)
    what = "unknown key" if file else "unknown flag"
    remedy = f"Did you mean {label(near[0]) if not file else near[0]}?" if near else "See --help"
    return Fault(label(spelling, file), "", what, remedy)


def resolve(
    givens: Iterable[Given], known: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, Given], list[Fault], list[str]]:
    """Field → what was given for it; what was given twice in one place; what a later file beats.

    A spelling of one field beats a shared one; else the later beats the earlier.
    """
    found: dict[str, Given] = {}
    faults: list[Fault] = []
    warnings: list[str] = []
    in_order = sorted(givens, key=lambda given: len(known[given.spelling]) == 1)
    for given in in_order:
        for name in known[given.spelling]:
            before = found.get(name)
            # A shared spelling and one of a single field are a rule and its exception.
            if before and len(known[before.spelling]) == len(known[given.spelling]):
                if before.file == given.file:
                    faults.append(_twice(before, given))
                elif before.texts != given.texts:
                    warnings.append(f"{before.label} has no effect: {given.label} says the same")
            found[name] = given
    return found, list(dict.fromkeys(faults)), warnings


def _twice(before: Given, now: Given) -> Fault:
    if before.label == now.label:
        return Fault(now.label, "", "is given twice", "Give it once")
    return Fault(now.label, "", f"{before.label} says the same", "Give one of the two")
