"""Whatever ends in whatever order: no sample is too old, no step waits for ever, none is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.rollout.staleness import (
    GroupCounts,
    GroupStatus,
    StalenessLimits,
    balance,
    capacity,
    metrics,
    select,
)
from trainer.types import Completion


@example(seed=1, max_staleness=2, batch=1, total_steps=4, refused=0.3, impatience=0.5)
@given(
    seed=st.integers(0, 2**32),
    max_staleness=st.integers(0, 4),
    batch=st.integers(1, 5),
    total_steps=st.integers(1, 12),
    refused=st.sampled_from([0.0, 0.3, 0.7]),
    impatience=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_every_step_gets_its_groups_in_time(
    seed: int,
    max_staleness: int,
    batch: int,
    total_steps: int,
    refused: float,
    impatience: float,
) -> None:
    """Groups end in any order, some without a signal, while the trainer is quick or slow."""
    chance = random.Random(seed)
    limits = StalenessLimits(max_staleness=max_staleness, batch=batch, total_steps=total_steps)
    finished = taken = begun = dropped = trained = 0
    alive: list[GroupStatus] = []
    while finished < total_steps:
        ready = sum(group.ready for group in alive)
        position = GroupCounts(
            finished=finished, taken=taken, ready=ready, under_way=len(alive) - ready
        )
        may_begin = capacity(limits, position)
        alive += [GroupStatus(finished, False)] * may_begin
        begun += may_begin
        waiting = [n for n, group in enumerate(alive) if not group.ready]
        chosen = select(limits, taken + 1, alive) if taken == finished else None
        if chosen is not None and (not waiting or chance.random() < impatience):
            assert len(chosen) == batch
            assert all(finished - alive[n].version <= max_staleness for n in chosen)
            alive = [group for n, group in enumerate(alive) if n not in chosen]
            taken, trained = taken + 1, trained + batch
        elif taken > finished and (not waiting or chance.random() < impatience):
            finished += 1
        else:
            assert waiting, "nothing is under way, and the trainer waits"
            n = chance.choice(waiting)
            if chance.random() < refused:
                alive.pop(n)
                dropped += 1
            else:
                alive[n] = GroupStatus(alive[n].version, True)
    assert not alive
    assert begun - dropped == trained == total_steps * batch


def test_rollouts_are_as_far_ahead_as_the_bound_lets_them() -> None:
    def begins(finished: int, taken: int, alive: int, max_staleness: int) -> int:
        limits = StalenessLimits(max_staleness=max_staleness, batch=4, total_steps=10)
        return capacity(
            limits, GroupCounts(finished=finished, taken=taken, ready=alive, under_way=0)
        )

    assert begins(0, 0, 0, max_staleness=0) == 4
    assert begins(0, 1, 0, max_staleness=0) == 0
    assert begins(0, 0, 0, max_staleness=2) == 12
    assert begins(0, 1, 8, max_staleness=2) == 0
    assert begins(1, 1, 8, max_staleness=2) == 4
    assert begins(9, 9, 4, max_staleness=2) == 0, "no step comes after the tenth"


def test_a_step_waits_for_what_is_due_and_for_nothing_else() -> None:
    limits = StalenessLimits(max_staleness=1, batch=2, total_steps=10)
    late, due, ready = GroupStatus(1, False), GroupStatus(1, True), GroupStatus(2, True)
    assert select(limits, 3, [late, ready, ready]) is None
    assert select(limits, 3, [due, late]) is None
    assert select(limits, 3, [due, GroupStatus(2, False), ready]) == [0, 2]
    assert select(limits, 2, [late, ready, ready]) == [1, 2]
    assert select(limits, 3, [ready]) is None


def test_a_step_leaves_no_more_to_the_next_one_than_that_can_train() -> None:
    limits = StalenessLimits(max_staleness=2, batch=1, total_steps=10)
    older, newer = GroupStatus(0, False), GroupStatus(1, True)
    assert select(limits, 2, [older, older, newer]) is None, "both of the older are due in step 3"
    assert select(limits, 2, [older, newer]) == [1]
    assert select(limits, 2, [older, GroupStatus(0, True), newer]) == [1]


@pytest.mark.parametrize(
    ("loads", "count", "expected"),
    [
        ([0, 0, 0], 4, [2, 1, 1]),
        ([6, 0], 2, [0, 2]),
        ([6, 0], 5, [1, 4]),
        ([0], 0, [0]),
    ],
)
def test_the_engine_with_the_least_to_do_gets_the_next_group(
    loads: list[int], count: int, expected: list[int]
) -> None:
    assert balance(loads, 2, count) == expected


def test_a_step_in_which_the_policy_wrote_no_token_has_no_staleness() -> None:
    none = np.zeros(2, dtype=np.bool_)
    silent = Completion(
        text="",
        tokens=np.array([5, 6]),
        action_mask=none,
        log_probs=np.zeros(2, dtype=np.float32),
        finished=True,
        versions=np.array([-1, -1]),
    )
    assert metrics([silent, silent], step=3, max_staleness=1) == {}
