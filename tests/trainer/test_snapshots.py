"""Copies of a rank's state, the shares that a snapshot is made of, and who holds them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.holder import PIECE_BYTES, Holder, NoRoomError, TornError, digest_of, pieces
from trainer.checkpoint.sheet import Contents, Sheet, newest_whole
from trainer.checkpoint.snapshot import Copies, Keep
from trainer.checkpoint.state import State

RANKS = {"policy": 2, "critic": 1}
ALL = [(role, rank) for role, count in RANKS.items() for rank in range(count)]


def sheet(step: int, role: str, rank: int, attempt: str = "a") -> Sheet:
    contents = Contents((), {}, 8)
    return Sheet(
        attempt=attempt,
        step=step,
        role=role,
        rank=rank,
        ranks=RANKS,
        run_state="{}",
        in_flight=None,
        contents=contents,
        digests=(),
    )


@given(st.sets(st.tuples(st.integers(1, 4), st.sampled_from(ALL), st.sampled_from("ab"))))
def test_a_snapshot_counts_where_all_its_shares_are_there_of_one_attempt(
    have: set[tuple[int, tuple[str, int], str]],
) -> None:
    found = newest_whole(sheet(step, role, rank, by) for step, (role, rank), by in have)
    whole = [
        (step, by)
        for step, by in product(range(1, 5), "ab")
        if all((step, one, by) in have for one in ALL)
    ]
    assert {(one.step, one.attempt) for one in found} == ({max(whole)} if whole else set())
    assert len(found) == (len(ALL) if whole else 0)


def numbers(start: float) -> State:
    weights = torch.arange(6.0).view(2, 3) + start
    return State(
        model={"embed": weights, "head": weights, "count": torch.tensor(int(start))},
        adam={"embed": {"step": torch.tensor(start), "exp_avg": weights / 2}},
        scheduler={"last_epoch": int(start)},
        average={"embed": weights.bfloat16()},
    )


def taken(copies: Copies, step: int, needed: list[int]) -> State:
    live = numbers(float(step))

    def state(keep: Keep) -> State:
        embed = keep(live.model["embed"])
        return State(
            model={"embed": embed, "head": embed, "count": keep(live.model["count"])},
            adam={"embed": {k: keep(v) for k, v in live.adam["embed"].items()}},
            scheduler=live.scheduler,
            average={"embed": keep(live.average["embed"])},
        )

    copies.take(step, needed, 4096, state)
    for tensor in (live.model["embed"], live.adam["embed"]["exp_avg"]):
        tensor.zero_()  # training goes on
    return copies.of(step).state()


def test_a_copy_is_what_the_state_was_while_its_step_is_needed() -> None:
    copies = Copies()
    for step, needed in ((1, []), (2, [1]), (3, [1, 2])):
        taken(copies, step, needed)
    taken(copies, 4, [1, 3])
    with pytest.raises(KeyError):
        copies.of(2)
    for step in (1, 3, 4):
        one, expected = copies.of(step).state(), numbers(float(step))
        assert one.scheduler == expected.scheduler
        for mine, theirs in (
            (one.model, expected.model),
            (one.average, expected.average),
            (one.adam["embed"], expected.adam["embed"]),
        ):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        assert one.model["embed"].data_ptr() == one.model["head"].data_ptr(), "copied once"


@pytest.fixture
def holder() -> Holder:
    return Holder(budget=4 * PIECE_BYTES)


def data(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)


def test_a_share_that_is_not_complete_never_replaces_a_whole_one(holder: Holder) -> None:
    content = data(PIECE_BYTES + 10)
    size = len(content)
    one, two = (
        replace(sheet(step, "policy", 0), contents=Contents((), {}, size)) for step in (1, 2)
    )
    for whole, step in ((True, one), (False, two)):
        holder.expect(step.key, size)
        for start, end in pieces(size)[: None if whole else 1]:
            holder.put(step.key, start, content[start:end], digest_of(content[start:end]))
        if whole:
            holder.complete(step, received=True)
    assert holder.sheets() == [one]
    with pytest.raises(TornError, match="a piece never came"):
        holder.complete(two, received=True)
    assert holder.sheets() == [one]
    assert np.array_equal(holder.piece(one.key, 0, size), content)


def test_a_piece_that_is_not_what_was_sent_is_refused(holder: Holder) -> None:
    content, key = data(100), sheet(1, "policy", 1).key
    holder.expect(key, 100)
    digest = digest_of(content)
    content[50] ^= 1
    with pytest.raises(TornError, match="share policy-1 of step 1"):
        holder.put(key, 0, content, digest)


def test_a_holder_takes_no_more_than_it_may_and_forgets_what_is_superseded(holder: Holder) -> None:
    for step in (1, 2):
        holder.expect(sheet(step, "policy", 0).key, 2 * PIECE_BYTES)
    with pytest.raises(NoRoomError, match=r"0\.40 GB, and may hold 0\.27 GB"):
        holder.expect(sheet(3, "policy", 0).key, 2 * PIECE_BYTES)
    holder.keep("a", 2)
    assert holder.held() == 2 * PIECE_BYTES
    holder.expect(sheet(3, "policy", 0).key, 2 * PIECE_BYTES)
    holder.keep("b", 1)  # another attempt begins
    assert holder.held() == 0
