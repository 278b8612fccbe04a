"""Copies of a rank's state, the shares that a snapshot is made of, and who holds them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from contract.files.child_variables import NODE_DIR
from contract.files.fd_store import LABEL
from contract.run_dir import RunFiles
from tests.support.sheets import RANKS, SIZE, sheet, sheet_of
from trainer.checkpoint import labels, replica_client
from trainer.checkpoint.memory_shards import ShardManifest, newest_complete
from trainer.checkpoint.protocol import Snapshot
from trainer.checkpoint.replica_store import NoRoomError, ReplicaStore, TornError, view
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.checkpoint.staging import StagingBuffers
from trainer.checkpoint.state import State
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster import shared_memory
from trainer.cluster.shared_memory import Segment
from trainer.cluster.tcp_stream import Server, StreamSource
from trainer.types import SnapshotLostError

ALL = [(role, rank) for role, count in RANKS.items() for rank in range(count)]


@given(
    st.sets(st.tuples(st.integers(1, 4), st.sampled_from(ALL), st.sampled_from("ab"))),
    st.none() | st.integers(0, 4),
)
def test_a_snapshot_counts_where_all_its_shares_are_there_of_one_attempt(
    have: set[tuple[int, tuple[str, int], str]], at_most: int | None
) -> None:
    shares = (sheet(step, role, rank, by) for step, (role, rank), by in have)
    found = newest_complete(shares, at_most)
    whole = [
        (step, by)
        for step, by in product(range(1, 5 if at_most is None else at_most + 1), "ab")
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


def taken(copies: StagingBuffers, step: int, needed: list[int]) -> State:
    live = numbers(float(step))
    copies.take(step, needed, live)
    for tensor in (live.model["embed"], live.adam["embed"]["exp_avg"]):
        tensor.zero_()  # training goes on
    return copies.of(step).state()


def test_a_copy_is_what_the_state_was_while_its_step_is_needed() -> None:
    copies = StagingBuffers()
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
def holder() -> ReplicaStore:
    return ReplicaStore(budget=2 * SIZE)


@pytest.fixture(scope="module")
def rank() -> tuple[Segment, StreamSource]:
    """A rank's copy of two pieces, and where it is read."""
    segment = Segment(SIZE)
    view(segment)[:] = np.random.default_rng(0).integers(0, 255, SIZE, dtype=np.uint8)
    return segment, Server(segment.buffer, port=0).source


def test_a_share_that_was_torn_on_its_way_never_replaces_a_whole_one(
    holder: ReplicaStore, rank: tuple[Segment, StreamSource]
) -> None:
    segment, source = rank
    one, two = sheet_of(segment, 1), sheet_of(segment, 2)
    holder.receive(one, source)
    view(segment)[-1] ^= 1  # training went on, and nobody waited
    try:
        with pytest.raises(TornError, match="shard policy-1 of step 2 was damaged on its way"):
            holder.receive(two, source)
    finally:
        view(segment)[-1] ^= 1
    assert holder.manifests() == [one]
    assert np.array_equal(holder.piece(one.key, 0, SIZE), view(segment))


def test_shares_of_a_step_that_come_at_once_have_no_more_room_than_one_by_one(
    rank: tuple[Segment, StreamSource],
) -> None:
    """One of a step before, which may never come, takes none of it."""
    segment, source = rank
    sheets = [
        replace(sheet_of(segment, step), rank=n) for step, n in ((1, 0), (2, 1), (2, 2), (2, 3))
    ]
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        host, port = listener.getsockname()
        silent = StreamSource(host, port, source.secret)
        holder = ReplicaStore(budget=2 * SIZE)
        threads = [Thread(target=ends_torn, args=(holder, one, silent)) for one in sheets[:3]]
        for thread in threads:
            thread.start()
            stack.enter_context(listener.accept()[0])
        with pytest.raises(NoRoomError):
            holder.receive(sheets[3], source)
    for thread in threads:
        thread.join()
    holder.receive(sheets[3], source)
    assert holder.manifests() == [sheets[3]]


def ends_torn(holder: ReplicaStore, sheet: ShardManifest, silent: StreamSource) -> None:
    with pytest.raises(TornError):
        holder.receive(sheet, silent)


def test_a_rank_that_does_not_answer_leaves_what_was_whole(
    holder: ReplicaStore, rank: tuple[Segment, StreamSource]
) -> None:
    segment, source = rank
    holder.receive(sheet_of(segment, 1), source)
    with pytest.raises(TornError, match="shard policy-1 of step 2 did not come"):
        holder.receive(sheet_of(segment, 2), replace(source, port=9))
    assert [one.step for one in holder.manifests()] == [1]


def test_a_holder_takes_no_more_than_it_may_and_forgets_what_is_superseded(
    holder: ReplicaStore, rank: tuple[Segment, StreamSource]
) -> None:
    segment, source = rank
    holder.receive(sheet_of(segment, 1), source)
    holder.attach(sheet_of(segment, 2), segment.address)
    with pytest.raises(NoRoomError, match=r"0\.20 GB, and may hold 0\.13 GB"):
        holder.receive(sheet_of(segment, 3), source)
    holder.keep("a", 2)
    assert [one.step for one in holder.manifests()] == [2]
    assert holder.held() == SIZE
    assert np.array_equal(holder.piece(sheet_of(segment, 2).key, 0, 9), view(segment)[:9])
    holder.keep("b", 1)  # another attempt begins
    assert holder.held() == 0


def test_what_is_learnt_of_a_step_that_is_held_is_held_with_it(
    holder: ReplicaStore, rank: tuple[Segment, StreamSource]
) -> None:
    segment, source = rank
    for step in (1, 2):
        holder.receive(sheet_of(segment, step), source)
    holder.amend("a", 2, "evaluated")
    holder.amend("b", 1, "of another attempt")
    assert [one.run_state for one in holder.manifests()] == [
        sheet_of(segment, 1).run_state,
        "evaluated",
    ]
    assert holder.held() == 2 * SIZE


def test_shards_that_this_node_alone_has_in_files_are_held_again_until_a_newer_step(
    rank: tuple[Segment, StreamSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, source = rank
    manifest = sheet_of(segment, 1)
    kept = RunFiles(tmp_path).kept / "a-run"
    kept.mkdir(parents=True)
    (kept / manifest.name).write_bytes(view(segment).tobytes())
    (kept / f"this-node{LABEL}").write_bytes(labels.dump([manifest]))
    assert ReplicaStore(2 * SIZE, "a-run", goes_on=True).manifests() == [], "they are shared"
    monkeypatch.setenv(NODE_DIR, str(tmp_path))
    assert ReplicaStore(2 * SIZE, "another", goes_on=True).manifests() == []
    found = ReplicaStore(2 * SIZE, "a-run", goes_on=True)
    assert found.manifests() == [manifest]
    assert np.array_equal(found.piece(manifest.key, 0, SIZE), view(segment))
    found.keep("a", 1)
    assert kept.exists(), "the run goes on from it"
    found.receive(sheet_of(segment, 2), source)
    found.keep("a", 2)
    assert not kept.exists()


class _Silent(SpilledReplicas):
    """Files whose error says nothing."""

    def read(self, manifest: ShardManifest) -> NDArray[np.uint8]:
        raise OSError


def test_a_place_that_fails_without_a_message_is_told_by_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "node", lambda: "here")
    shard = sheet(1, "policy", 0)
    driver = DriverState(RunState.parse(shard.run_state))
    snapshot = Snapshot(driver, ((shard, (_Silent(tmp_path, "a run"),)),))
    with pytest.raises(SnapshotLostError, match=r"shard policy-0 of step 1: OSError\(\)"):
        replica_client.load(snapshot, "policy")
