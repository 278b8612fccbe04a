"""Pure: how far rollouts may be ahead of training, and which of them a step is made of.

Version v of the policy is that after v finished steps. Step k trains version k − 1, so a sample
that version v began is k − 1 − v versions old there: its staleness. With at most S allowed, a group
(the completions of one prompt) that v began must be in step v + S + 1 or before.

So many groups are begun that this can always be kept (AReaL, Fu et al. 2025, equation 3): all that
were ever begun by version v, without those that a filter took out, fit into the first v + S + 1
steps. No more than a step's worth is due in any step then, and none is ever thrown away for its
age. With S = 0 a step's groups begin when the last step has ended, and end before it begins: the
synchronous loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    max_staleness: int
    batch: int
    """Groups of a step."""
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    finished: int
    """Steps that are behind the weights with which engines write: their version."""
    taken: int
    """Steps whose samples the trainer was given."""
    ready: int
    """Groups that are scored, and in no step yet."""
    under_way: int
    """Groups that are written or scored."""

    @property
    def alive(self) -> int:
        return self.ready + self.under_way


def room(pace: Pace, at: Position) -> int:
    """How many groups may be begun now."""
    if pace.max_staleness == 0 and at.under_way:
        return 0  # all of a step begin together, also those that take the place of others
    last = min(at.finished + pace.max_staleness + 1, pace.total_steps)
    return max(0, (last - at.taken) * pace.batch - at.alive)


@dataclass(frozen=True, slots=True)
class Begun:
    """A group, as far as its place in a step depends on it."""

    version: int
    """That of the engines when it was begun."""
    ready: bool


def choose(pace: Pace, step: int, groups: Sequence[Begun]) -> list[int] | None:
    """The groups of `step`, out of those alive in the order in which they were begun; None: wait.

    Whatever would be too old in the next step is among them; the first of those that are ready
    fill up the rest.
    """
    is_due = [group.version + pace.max_staleness + 1 <= step for group in groups]
    due = [n for n, now in enumerate(is_due) if now]
    others = [n for n, now in enumerate(is_due) if not now and groups[n].ready]
    chosen = sorted([*due, *others[: max(0, pace.batch - len(due))]])
    if len(chosen) < pace.batch or not all(groups[n].ready for n in chosen):
        return None
    return chosen


def levelled(loads: Sequence[int], each: int, count: int) -> list[int]:
    """How many of `count` loads of `each` every engine gets, so that all have the most equal."""
    total, given = np.array(loads), [0] * len(loads)
    for _ in range(count):
        least = int(total.argmin())
        total[least] += each
        given[least] += 1
    return given
