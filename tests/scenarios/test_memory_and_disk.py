"""What a run goes on from where memory and disk hold different steps, and what is then on disk.

The nodes' memory is a directory here; real holders are in `test_peers_on_ray`.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contract.journal import append_event, read_events
from contract.manifest import WrittenFile, checkpoint_path, newest_checkpoint
from contract.progress import Progress
from contract.run_dir import RunFiles
from tests.support import local_workers
from tests.support.local_workers import LocalWorkerGroup
from tests.support.remembered import LEAN, Remembered
from tests.support.saved_states import flip_a_bit, leaves_of
from tests.support.tiny_run import Tiny, dying_at, events, train
from trainer.checkpoint import replica_client, replication, state
from trainer.checkpoint.protocol import Snapshot
from trainer.checkpoint.state import State
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster.worker_group import build
from trainer.config.config import Config
from trainer.training.recovery import ReplicasInMemory
from trainer.types import BeyondRepairError, LostWorkerError, NoRoomError, SnapshotLostError
from trainer.workers.groups import WorkerGroups


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remembered:
    found = Remembered(tmp_path / "memory")
    monkeypatch.setattr(
        replica_client, "load", lambda s, role: state.load(found.held(s.step), role)
    )
    return found


def lose_the_last_checkpoint(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the disk were full, once."""
    assert config.train.max_steps is not None
    save, lost = state.save, checkpoint_path(config.checkpoints, config.train.max_steps)

    def fails_once(directory: Path, *rest: Any) -> WrittenFile:
        if directory == lost:
            monkeypatch.setattr(state, "save", save)
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(directory, *rest)

    monkeypatch.setattr(state, "save", fails_once)


def test_a_run_whose_last_step_is_in_memory_alone_ends_with_it_on_disk(
    tiny: Tiny, run_dir: Path, memory: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {**LEAN, "max_steps": 3, "save_steps": 2, "load_checkpoint": True}
    config = tiny.config(run_dir, **flags)
    lose_the_last_checkpoint(config, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        train(config, peers=memory)
    assert newest_checkpoint(config.checkpoints) == 2
    assert train(config, peers=memory).step == 3
    assert newest_checkpoint(config.checkpoints) == 3
    assert [event["details"]["step"] for event in events(config, "step")] == [1, 2, 3]
    undisturbed = tiny.config(run_dir.with_name("undisturbed"), **flags)
    train(undisturbed)
    assert leaves_of(config, 3) == leaves_of(undisturbed, 3)


@pytest.mark.parametrize(
    ("in_memory", "broken", "resumed", "source"),
    [
        (3, True, 3, "the nodes' memory"),
        (2, True, 2, "the nodes' memory"),
        (3, False, 3, "the nodes' memory"),
        (2, False, 3, "global_step_3"),
    ],
)
def test_the_newest_that_is_whole_to_the_bit_is_gone_on_from(
    tiny: Tiny,
    run_dir: Path,
    memory: Remembered,
    in_memory: int,
    *,
    broken: bool,
    resumed: int,
    source: str,
) -> None:
    flags = {**LEAN, "max_steps": 4, "save_steps": 3, "load_checkpoint": True}
    config, memory.last = tiny.config(run_dir, **flags), in_memory
    with pytest.raises(RuntimeError, match="dies"):
        train(config, dying_at(4), peers=memory)
    if broken:
        flip_a_bit(checkpoint_path(config.checkpoints, 3) / "policy.pt")
    train(config, peers=memory)
    (restored,) = events(config, "restore")
    assert restored["details"]["step"] == resumed
    assert source in restored["sentence"]
    skipped = [event["details"]["step"] for event in events(config, "checkpoint-skipped")]
    assert skipped == ([3] if broken else [])


def test_a_step_that_was_in_memory_alone_is_not_shown_as_a_checkpoint(
    tiny: Tiny, run_dir: Path, memory: Remembered
) -> None:
    flags = {**LEAN, "max_steps": 6, "load_checkpoint": True}
    with pytest.raises(RuntimeError, match="dies"):
        train(tiny.config(run_dir, **flags, save_steps=2), dying_at(4), peers=memory)
    config = tiny.config(run_dir, **flags, save_steps=6)
    with pytest.raises(RuntimeError, match="dies"):
        train(config, dying_at(2), peers=memory)
    shown = Progress.read(config.files.progress)
    assert shown is not None
    assert (shown.step, shown.in_memory, shown.checkpoint) == (4, 4, 2)
    assert newest_checkpoint(config.checkpoints) == 2


def test_a_snapshot_that_is_lost_leaves_what_is_whole_on_disk(
    tiny: Tiny, run_dir: Path, memory: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(snapshot: Snapshot, role: str) -> State:
        raise SnapshotLostError("its checksum differs")

    flags = {**LEAN, "save_steps": 1, "load_checkpoint": True}
    train(tiny.config(run_dir, **flags, max_steps=3), peers=memory)
    flip_a_bit(checkpoint_path(run_dir / "checkpoints", 3) / "policy.pt")
    monkeypatch.setattr(replica_client, "load", lost)
    config = tiny.config(run_dir, **flags, max_steps=4)
    train(config, peers=memory)
    assert [event["details"]["step"] for event in events(config, "checkpoint-skipped")] == [3]
    assert [event["details"]["step"] for event in events(config, "snapshot-skipped")] == [3]
    assert [event["details"]["step"] for event in events(config, "restore")] == [2]


class TwoSteps(Remembered):
    """Holds the step before the newest as well."""

    before: DriverState | None = None

    def replicate(self, driver: DriverState, learners: Any) -> None:
        self.before = self.driver
        super().replicate(driver, learners)

    def newest(self, at_most: int | None = None) -> Snapshot | None:
        newest = super().newest(at_most)
        if newest or not self.before or (at_most is not None and self.before.run.step > at_most):
            return newest
        return Snapshot(self.before, ())


def test_a_snapshot_that_is_lost_leaves_the_one_before_that_the_nodes_still_have(
    tiny: Tiny, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(snapshot: Snapshot, role: str) -> State:
        if snapshot.step == 3:
            raise SnapshotLostError("its checksum differs")
        return state.load(nodes.held(snapshot.step), role)

    nodes = TwoSteps(tmp_path / "memory")
    monkeypatch.setattr(replica_client, "load", load)
    flags = {**LEAN, "max_steps": 5, "save_steps": 5, "load_checkpoint": True}
    config = tiny.config(run_dir, **flags)
    with pytest.raises(RuntimeError, match="dies"):
        train(config, dying_at(4), peers=nodes)
    train(config, peers=nodes)
    assert [event["details"]["step"] for event in events(config, "snapshot-skipped")] == [3]
    assert [event["details"]["step"] for event in events(config, "restore")] == [2]
    undisturbed = tiny.config(run_dir.with_name("undisturbed"), **flags)
    train(undisturbed)
    assert leaves_of(config, 5) == leaves_of(undisturbed, 5)


@pytest.mark.parametrize("estimator", ["group_norm", "gae"])
def test_a_snapshot_that_is_lost_with_nothing_on_disk_leaves_a_run_that_begins(
    tiny: Tiny,
    run_dir: Path,
    memory: Remembered,
    monkeypatch: pytest.MonkeyPatch,
    estimator: str,
) -> None:
    """A critic loads its share after the policy has been restored."""

    def in_part(snapshot: Snapshot, role: str) -> State:
        if role == "critic" or estimator == "group_norm":
            raise SnapshotLostError("its checksum differs")
        return state.load(memory.held(snapshot.step), role)

    def restart(group: LocalWorkerGroup[Any], workers: Any) -> None:
        (worker,) = group._workers
        group._workers = [type(worker)(*made[type(worker).__name__])]

    made: dict[str, Any] = {}

    def remember(actor: str, args: Any) -> Any:
        made[actor.partition(":")[2]] = args
        return build(actor, args)

    flags: dict[str, Any] = {"max_steps": 5, "save_steps": 5, "load_checkpoint": True}
    flags |= {"advantage_estimator": estimator, "init_kl_coef": 0}
    config = tiny.config(run_dir, **flags)
    with pytest.raises(RuntimeError, match="dies"):
        train(config, dying_at(4), peers=memory)
    monkeypatch.setattr(replica_client, "load", in_part)
    monkeypatch.setattr(LocalWorkerGroup, "restart", restart)
    monkeypatch.setattr(local_workers, "build", remember)
    train(config, peers=memory)
    assert [event["details"]["step"] for event in events(config, "snapshot-skipped")] == [3]
    assert not events(config, "restore")
    undisturbed = tiny.config(run_dir.with_name("undisturbed"), **flags)
    train(undisturbed)
    assert leaves_of(config, 5) == leaves_of(undisturbed, 5)


def test_learners_that_cannot_be_started_anew_end_the_attempt(
    tiny: Tiny, run_dir: Path, memory: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(snapshot: Snapshot, role: str) -> State:
        raise SnapshotLostError("its checksum differs")

    config = tiny.config(run_dir, **LEAN, max_steps=4, save_steps=4, load_checkpoint=True)
    with pytest.raises(RuntimeError, match="dies"):
        train(config, dying_at(3), peers=memory)
    monkeypatch.setattr(replica_client, "load", lost)
    with pytest.raises(NoRoomError):
        train(config, peers=memory)


def test_a_step_that_its_lost_rank_had_given_away_is_journaled_before_the_recovery(
    tiny: Tiny, run_dir: Path, memory: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes have the step, though the answer that it arrived was lost with the rank."""

    def unanswered() -> None:
        if memory.complete == 3 and not events(config, "rank-replaced"):
            raise LostWorkerError("policy-0 is lost", "policy", "its node ended")

    config = tiny.config(run_dir, **LEAN, max_steps=5, save_steps=5)
    monkeypatch.setattr(memory, "wait", unanswered)
    monkeypatch.setattr(LocalWorkerGroup, "restart", lambda group, workers: None)
    train(config, peers=memory)
    kinds = ("step", "rank-replaced")
    found = [e for e in read_events(config.files.journal) if e["kind"] in kinds]
    assert [(event["kind"], event["details"]["step"]) for event in found] == [
        *(("step", 1), ("step", 2), ("step", 3), ("rank-replaced", 3), ("step", 4), ("step", 5)),
    ]


def test_a_step_on_nodes_that_are_out_of_reach_is_left_to_the_next_attempt(
    tiny: Tiny, run_dir: Path, memory: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes start their Ray again: an older checkpoint is whole, and would lose the step."""

    flags = {**LEAN, "max_steps": 5, "save_steps": 2, "load_checkpoint": True}
    config = tiny.config(run_dir, **flags)
    monkeypatch.setattr(LocalWorkerGroup, "restart", lambda group, workers: None)
    with monkeypatch.context() as away:

        def unanswered() -> None:
            if memory.complete == 3:
                away.setattr(memory, "newest", lambda at_most=None: None)
                raise LostWorkerError("policy-0 is lost", "policy", "its node was lost")

        away.setattr(memory, "wait", unanswered)
        with pytest.raises(BeyondRepairError, match="hold step 3 in memory cannot be reached"):
            train(config, peers=memory)
    train(config, peers=memory)
    assert [event["details"]["step"] for event in events(config, "restore")] == [3]


@dataclass
class Learned:
    """A learner that keeps what it is restored from."""

    sources: list[Any] = field(default_factory=list)

    def restore(self, source: Any) -> None:
        self.sources.append(source)


def test_a_repair_restores_what_its_look_has_found_though_another_would_miss_it(
    tmp_path: Path,
) -> None:
    driver = DriverState(RunState(step=7, seed=42, prompts={}))
    nodes, learner = Remembered(tmp_path, driver), Learned()
    workers = cast(WorkerGroups, SimpleNamespace(learners={"policy": LocalWorkerGroup([learner])}))
    memory = ReplicasInMemory(cast(replication.Replicator, nodes))
    assert memory.newest(range(1, 7)) is None
    found = memory.newest(range(1, 8))
    nodes.driver = None  # as where its holder answers late
    assert found == driver.run
    memory.restore(workers, 7)
    assert learner.sources == [Snapshot(driver, ())]
    assert memory.newest(range(1, 8)) is None
    with pytest.raises(SnapshotLostError, match="no snapshot of step 7"):
        memory.restore(workers, 7)


@pytest.mark.parametrize(
    ("progress", "steps", "looked_for"),
    [
        (None, 0, False),
        ('{"step": 4}', 4, False),
        ('{"step": 4, "in_memory": 4}', 4, True),
        (None, 4, True),
        ('\ufffe{"step"', 4, True),
    ],
    ids=["first start", "nothing held", "held", "progress lost", "progress damaged"],
)
def test_snapshots_in_memory_are_looked_for_also_where_progress_is_lost(
    tmp_path: Path, progress: str | None, steps: int, looked_for: bool
) -> None:
    run = RunFiles(tmp_path)
    if progress is not None:
        run.progress.write_text(progress)
    for step in range(1, steps + 1):
        append_event(run.journal, "step", "own", {"step": step})
    assert replication.may_be_held(run) == looked_for
