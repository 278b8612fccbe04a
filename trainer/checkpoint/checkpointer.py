"""Saves each step: a checkpoint on disk, and replicas in the memory of other nodes.

A step waits only for the copy out of the training processes. Replicas of the copy are sent while
the next step runs. Once two nodes have a full copy, the step is finished; until then it is in
progress, and may be repeated. For the disk each process writes its shard of the same copy in a
thread. When all shards are durable, the driver completes the checkpoint between two steps; until
then it does not exist. A Hugging Face model is written from a copy of its own.

If a replication fails, its step is finished with the next step that is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from contract import lease
from contract.background import in_background
from contract.manifest import WrittenFile, lineage_of
from trainer.checkpoint import head_file_store, retention, writer
from trainer.checkpoint.protocol import Checkpointable, Exportable
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.retention import Retention
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster.worker_group import Pending, WorkerGroup
from trainer.config.config import Config


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is complete on disk."""

    step: int
    bytes: int
    stall_seconds: float
    """Seconds for which training waited."""
    seconds: float
    """Seconds from the copy to the manifest."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    driver: DriverState
    directory: Path | None
    """The checkpoint's; None if only a Hugging Face model is written."""
    shares: list[Pending[list[WrittenFile]]]
    exported: list[Pending[list[list[WrittenFile]]]]
    """The files of the Hugging Face model, from the first rank; empty if none is wanted."""
    stall_seconds: float
    since: float


@dataclass(frozen=True, slots=True)
class _Copied:
    """The step that the ranks have a copy of."""

    step: int
    seconds: float


class Dumpable(Protocol):
    """Pending rollouts."""

    def dump(self) -> bytes:
        """Return their form on disk."""


PendingOf = Callable[[], Dumpable | None]
"""Returns the pending rollouts, if there are any."""


class Observer(Protocol):
    """Is told what was saved."""

    def step_durable(self, step: int) -> None:
        """The steps up to this one are held. Called by a background thread, too."""

    def checkpoint_written(self, checkpoint: Saved) -> None:
        """A checkpoint is complete on disk."""


class Checkpointer:
    """At most one checkpoint and one replication run at a time; the next waits for them."""

    def __init__(
        self,
        config: Config,
        learners: Mapping[str, WorkerGroup[Checkpointable]],
        policy: WorkerGroup[Exportable],
        observer: Observer,
        replicator: Replicator | None = None,
    ) -> None:
        self._config = config
        self._learners = learners
        self._policy = policy
        self._observer = observer
        self._replicator = replicator
        self._replication: Future[None] | None = None
        """The replication of the newest step, until `wait` has taken its result."""
        self._copied: _Copied | None = None
        self._under_way: _UnderWay | None = None
        self._waiting_reported = False
        self._last_failed = False
        """The last checkpoint failed, so the next step gets one."""

    def snapshot(self, state: RunState, pending: PendingOf) -> None:
        """Copy and replicate the newest step. Without a replicator the step is finished at once.

        Raises OSError if the checkpoint before could not be written.
        """
        self.wait()
        self._confirm(wait=False)
        step = state.step
        if self._replicator is None or not self._replicator.on:
            self._observer.step_durable(step)
            return
        driver = DriverState(state, _dumped(pending()))
        self._copy(step)
        self._replicator.replicate(driver, self._learners)
        self._replication = in_background("replication", lambda: self._wait_replicated(step))

    def wait(self) -> None:
        """Wait until the newest step is finished. Raises what a rank's death raises."""
        replication, self._replication = self._replication, None
        if replication:
            replication.result()

    def amend(self, state: RunState) -> None:
        """Replace the run state of the step that is held, after its evaluation."""
        if self._replicator:
            self._replicator.amend(state)

    def save(self, state: RunState, *, due: bool, pending: PendingOf) -> None:
        """Complete the checkpoint that is under way, if it is ready; begin one if it is `due`.

        Raises OSError if a checkpoint could not be written, also if it was the one before.
        """
        due = due or self._last_failed
        self._confirm(wait=due)
        if not due:
            return
        to_disk = not self._config.disable_ds_ckpt
        waited = self._copy(state.step) if to_disk else 0.0
        since = time.monotonic() - waited
        if to_disk or self._config.save_hf_ckpt:
            driver = DriverState(state, _dumped(pending()) if to_disk else None)
            self._begin(driver, since, to_disk=to_disk)

    def finish(self) -> None:
        """Wait for all replication and checkpoints. Raises OSError."""
        self.wait()
        if self._under_way:
            self._commit(self._under_way)

    def try_flush(self) -> None:
        """Complete what is under way if possible; raise nothing, as another error is on its way."""
        with suppress(Exception):
            self.wait()
        with suppress(Exception):
            if self._under_way:
                self._commit(self._under_way)
        self._copied = None  # a restarted process has no copy

    def roll_back(self, step: int) -> None:
        """The steps after `step` are repeated."""
        if self._replicator:
            self._replicator.branch_off(step)

    def _wait_replicated(self, step: int) -> None:
        assert self._replicator is not None
        if self._replicator.wait():
            self._observer.step_durable(step)

    def _copy(self, step: int) -> float:
        """Make the ranks copy the step, unless they have. Returns the seconds that it took."""
        if self._copied and self._copied.step == step:
            return self._copied.seconds
        since = time.monotonic()
        needed = [self._under_way.driver.run.step] if self._under_way else []
        if self._replicator and self._replicator.complete is not None:
            needed.append(self._replicator.complete)
        groups = self._learners.values()
        for copied in [group.call_ranks(Checkpointable.snapshot, step, needed) for group in groups]:
            copied.result()
        self._copied = _Copied(step, time.monotonic() - since)
        return self._copied.seconds

    def _begin(self, driver: DriverState, since: float, *, to_disk: bool) -> None:
        lease.check(lease.mine())  # a later head's checkpoint may lie there
        directory, shares, exported = None, [], []
        if self._config.save_hf_ckpt:
            self._policy.call_ranks(Exportable.hold).result()
        step = driver.run.step
        if to_disk:
            directory = writer.begin(self._config.checkpoints, step)
            groups, to = self._learners.values(), head_file_store.place(self._config, directory)
            shares = [group.call_background(Checkpointable.save, step, to) for group in groups]
        if self._config.save_hf_ckpt:
            alone = self._config.checkpoints / f"global_step_{step}_hf"
            model = head_file_store.place(
                self._config, directory / writer.EXPORTED if directory else alone
            )
            exported = [self._policy.call_background(Exportable.export_held, model)]
        stall = time.monotonic() - since
        self._under_way = _UnderWay(driver, directory, shares, exported, stall, since)

    def _confirm(self, *, wait: bool) -> None:
        under_way = self._under_way
        if under_way is None:
            return
        ready = all(part.ready(0) for part in (*under_way.shares, *under_way.exported))
        if wait and not ready and not self._waiting_reported:
            self._waiting_reported = True
            step = under_way.driver.run.step
            print(
                f"The next checkpoint waits until that of step {step} is written: "
                f"--save_steps {self._config.save_steps} is shorter than that takes.",
                flush=True,
            )
        if wait or ready:
            self._commit(under_way)

    def _commit(self, under_way: _UnderWay) -> None:
        self._under_way, self._last_failed = None, True  # until it is complete
        files = [file for part in under_way.shares for file in part.result()]
        exported = [one for part in under_way.exported for rank in part.result() for one in rank]
        if under_way.directory:
            below = (replace(one, name=f"{writer.EXPORTED}/{one.name}") for one in exported)
            ours = lineage_of(self._config.files)
            writer.commit(under_way.directory, under_way.driver, [*files, *below], ours.run)
            rule = Retention(self._config.max_ckpt_num, self._config.max_ckpt_mem * 1e9)
            step = under_way.driver.run.step
            retention.apply(under_way.directory.parent, rule, step, ours)
            self._tell(under_way, files)
        self._last_failed = False

    def _tell(self, under_way: _UnderWay, files: Sequence[WrittenFile]) -> None:
        self._observer.checkpoint_written(
            Saved(
                under_way.driver.run.step,
                sum(file.bytes for file in files),
                under_way.stall_seconds,
                time.monotonic() - under_way.since,
            )
        )


def _dumped(pending: Dumpable | None) -> bytes | None:
    return pending.dump() if pending else None
