"""OpenRLHF's spellings of flags: the flags of the builtin trainer and its stages are spelt so."""

from __future__ import annotations

from functools import cache

from trainer.config.config import Config
from trainer.config.schema import flags_of
from trainer.config.translate.openrlhf import OLD, counterparts
from trainer.supervised.stages import STAGES

__all__ = ["OLDER", "counterparts", "dotted_spellings"]

OLDER = frozenset(row.theirs for row in OLD.rows)
"""Flags that only older releases have."""


@cache
def dotted_spellings(*, ppo: bool) -> dict[str, tuple[str, ...]]:
    """Return each flag as releases before 0.11 spell it → those of 0.11 that it sets.

    Of train_ppo_ray, or of train_sft, train_rm and train_dpo together.
    """
    table: dict[str, tuple[str, ...]] = {}
    declared = flags_of(Config)
    for name, flag in declared.items():
        for spelling in (name, *flag.about.aliases):
            table[spelling] = flag.about.dotted_spellings
    for flag in declared.values():  # a flat flag of the optimizer sets actor and critic
        if flag.about.follows:
            table[flag.about.follows] += flag.about.dotted_spellings
    table = {name: dotted for name, dotted in table.items() if dotted}
    for stage in () if ppo else STAGES.values():
        own = {name: flag.about.dotted_spellings for name, flag in flags_of(stage).items()}
        table |= {
            name: dotted or (name,) for name, dotted in own.items() if dotted or name in table
        }
    return table
