"""OpenRLHF's spellings of flags: the builtin trainer's own flags are spelt so."""

from __future__ import annotations

from functools import cache

from trainer.config.config import Config
from trainer.config.schema import flags_of
from trainer.config.translate.openrlhf import counterparts

__all__ = ["counterparts", "dotted_spellings"]


@cache
def dotted_spellings() -> dict[str, tuple[str, ...]]:
    """Return each flag as releases before 0.11 spell it → those of 0.11 that it sets."""
    table: dict[str, tuple[str, ...]] = {}
    declared = flags_of(Config)
    for name, flag in declared.items():
        table[name] = flag.about.dotted_spellings
    for flag in declared.values():  # a flat flag of the optimizer sets actor and critic
        if flag.about.follows:
            table[flag.about.follows] += flag.about.dotted_spellings
    return {name: dotted for name, dotted in table.items() if dotted}
