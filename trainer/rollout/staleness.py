"""Pure: how many rollouts may begin ahead of training, and which rollouts a step trains on.

Version v of the policy is the policy after v finished steps. Step k trains version k − 1. A sample
that version v began is therefore k − 1 − v versions old in step k: that is its staleness. If S is
the most that is allowed, a group (the completions of one prompt) of version v must be in step
v + S + 1 or before.

The limit on groups that begin keeps this always possible (AReaL, Fu et al. 2025, equation 3). All
groups begun by version v, without those that a filter removed, fit into the first v + S + 1 steps.
A step takes the groups that could not all be in later steps before any other. So no step has more
than its number of groups due, and no group is discarded for its age. With S = 0 the groups of a
step begin after the step before has ended, as with synchronous rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.types import Completion, Metrics, TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessLimits:
    max_staleness: int
    batch: int
    """Groups of one step."""
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """How far the rollouts are."""

    finished: int
    """Finished steps behind the engines' weights: the version of those weights."""
    taken: int
    """Steps whose samples the trainer has taken."""
    ready: int
    """Scored groups that are in no step yet."""
    under_way: int
    """Groups that engines still write, or that are not scored yet."""

    @property
    def alive(self) -> int:
        return self.ready + self.under_way


def capacity(limits: StalenessLimits, counts: GroupCounts) -> int:
    """Return how many groups may begin now."""
    if limits.max_staleness == 0 and counts.under_way:
        return 0  # the groups of a step begin together, also those that replace filtered ones
    last = min(counts.finished + limits.max_staleness + 1, limits.total_steps)
    return max(0, (last - counts.taken) * limits.batch - counts.alive)


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What the choice of a step's groups depends on."""

    version: int
    """Version of the engines' weights when the group began."""
    ready: bool


def select(limits: StalenessLimits, step: int, groups: Sequence[GroupStatus]) -> list[int] | None:
    """Return the indices of the groups of `step`; None if the step must wait.

    `groups`: all groups alive, in the order in which they began. The step takes the first ready
    groups, but leaves no more groups to a later step than that step can train.
    """
    by_readiness = sorted(range(len(groups)), key=lambda index: not groups[index].ready)
    chosen: list[int] = []
    for last in range(step, step + limits.max_staleness + 1):
        due = [n for n in by_readiness if groups[n].version + limits.max_staleness + 1 <= last]
        now = len(due) - (last - step) * limits.batch  # the others fit into the steps until `last`
        free = [index for index in due if index not in chosen]
        chosen += free[: max(0, now - len(chosen))]
    free = [index for index in by_readiness if index not in chosen]
    chosen += free[: limits.batch - len(chosen)]
    if len(chosen) < limits.batch or not all(groups[index].ready for index in chosen):
        return None
    return sorted(chosen)


def balance(loads: Sequence[int], each: int, count: int) -> list[int]:
    """Return how many of `count` loads of size `each` every engine gets, to keep loads equal."""
    total, given = np.array(loads), [0] * len(loads)
    for _ in range(count):
        least = int(total.argmin())
        total[least] += each
        given[least] += 1
    return given


def metrics(completions: Sequence[Completion], step: int, max_staleness: int) -> Metrics:
    """Return how old the samples of `step` are; nothing if no sample has a token of the policy.

    Raises TrainingError if a sample is too old.
    """
    ages = [step - 1 - c.version for c in completions if c.length]  # dropped episodes have none
    if not ages:
        return {}
    if max(ages) > max_staleness:
        raise TrainingError(
            f"a sample is {max(ages)} versions old; --max_staleness {max_staleness}"
        )
    older = np.concatenate([c.versions[c.action_mask] < step - 1 for c in completions])
    return {
        "staleness": float(np.mean(ages)),
        "staleness_max": float(max(ages)),
        "older_tokens": float(older.mean()),
    }
