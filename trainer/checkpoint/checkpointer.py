"""What a run keeps of itself after each step: on disk, and in the memory of other nodes.

A step waits for nothing but the copy out of the training processes. Peers get their shares of it
while the next step is made; once two nodes have each of them, the step is finished: until then it
is in flight, and may be made again. For the disk each process writes its share of the same copy in
a thread; when all are durable, the driver confirms the checkpoint at the next boundary between two
steps. Until then it does not exist. A Hugging Face model is written of a copy of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from contract import lease
from contract.manifest import Written
from trainer.checkpoint import writer
from trainer.checkpoint.retention import Retention
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster.background import in_background
from trainer.cluster.worker_group import Pending
from trainer.config.config import Config
from trainer.rollout.rollout_state import PendingRollouts
from trainer.workers.groups import WorkerGroups
from trainer.workers.protocols import Learner, Policy

if TYPE_CHECKING:
    from trainer.checkpoint.replication import Peers


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is whole on disk."""

    step: int
    bytes: int
    stall_seconds: float
    """For how long training waited."""
    seconds: float
    """From the copy to the manifest."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    driver: DriverState
    directory: Path | None
    """Of the checkpoint; None where there is to be none but the Hugging Face model."""
    shares: list[Pending[list[Written]]]
    exported: list[Pending[list[list[Written]]]]
    """The Hugging Face model, where one is wanted: its files, from the first rank."""
    stall_seconds: float
    since: float


@dataclass(frozen=True, slots=True)
class _Copied:
    """What the ranks have a copy of."""

    step: int
    seconds: float


class Observer(Protocol):
    def step_durable(self, step: int) -> None:
        """A step is held. Called by a background thread while the next step runs."""

    def checkpoint_written(self, checkpoint: Saved) -> None:
        """A checkpoint is complete on disk."""


class Keeping:
    """At most one checkpoint is under way, and one hand-over: the next one waits for it."""

    def __init__(
        self,
        config: Config,
        workers: WorkerGroups,
        observer: Observer,
        peers: Peers | None = None,
    ) -> None:
        self._config = config
        self._workers = workers
        self._observer = observer
        self._peers = peers
        self._handing: Future[None] | None = None
        """A step's way to the peers, until someone has asked what came of it."""
        self._copied: _Copied | None = None
        self._under_way: _UnderWay | None = None
        self._said_that_it_waits = False
        self._owed = False
        """Whether the last checkpoint came to nothing, and the next step is to have one."""

    def hold(self, state: RunState, pending: Callable[[], PendingRollouts | None]) -> None:
        """A step is made. It is finished once it is held; without peers it is that at once.

        `pending`: returns the pending rollouts. Raises OSError if the checkpoint before could not
        be written.
        """
        self.settle()
        self._confirm(wait=False)
        step = state.step
        if self._peers is None or not self._peers.on:
            self._observer.step_durable(step)
            return
        driver = DriverState(state, _dumped(pending()))
        self._copy(step)
        self._peers.begin(driver, self._workers.learners)
        self._handing = in_background("hand-over", lambda: self._hand_over(step))

    def settle(self) -> None:
        """Wait until the step that was made last is finished. Raises what a rank's death raises."""
        handing, self._handing = self._handing, None
        if handing:
            handing.result()

    def evaluated(self, state: RunState) -> None:
        """More is known of the step that is held."""
        if self._peers:
            self._peers.amend(state)

    def save(
        self, state: RunState, *, due: bool, pending: Callable[[], PendingRollouts | None]
    ) -> None:
        """`due`: the step that was made last is to have a checkpoint; `pending`: as above.

        Raises OSError where a checkpoint could not be written, be it the one before.
        """
        due = due or self._owed
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
        """Complete what is under way. Raises OSError."""
        self.settle()
        if self._under_way:
            self._commit(self._under_way)

    def salvage(self) -> None:
        """Complete what is under way if that can be done: what comes next has another reason."""
        with suppress(Exception):
            self.settle()
        with suppress(Exception):
            if self._under_way:
                self._commit(self._under_way)
        self._copied = None  # a process that starts anew has no copy

    def goes_back(self, step: int) -> None:
        """The steps after `step` are made again."""
        if self._peers:
            self._peers.branch_off(step)

    def _hand_over(self, step: int) -> None:
        assert self._peers is not None
        self._peers.settle()
        self._observer.step_durable(step)

    def _copy(self, step: int) -> float:
        """Unless there is one of that step. Returns for how many seconds training waited, be it
        before."""
        if self._copied and self._copied.step == step:
            return self._copied.seconds
        since = time.monotonic()
        needed = [self._under_way.driver.run.step] if self._under_way else []
        if self._peers and self._peers.whole is not None:
            needed.append(self._peers.whole)
        groups = self._workers.learners.values()
        for copied in [group.call_ranks(Learner.snapshot, step, needed) for group in groups]:
            copied.result()
        self._copied = _Copied(step, time.monotonic() - since)
        return self._copied.seconds

    def _begin(self, driver: DriverState, since: float, *, to_disk: bool) -> None:
        lease.check(lease.mine())  # a later head's checkpoint may lie there
        directory, shares, exported = None, [], []
        if self._config.save_hf_ckpt:
            self._workers.policy.call_ranks(Policy.hold).result()
        step = driver.run.step
        if to_disk:
            directory = writer.begin(self._config.checkpoints, step)
            groups = self._workers.learners.values()
            shares = [group.call_background(Learner.save, step, directory) for group in groups]
        if self._config.save_hf_ckpt:
            alone = self._config.checkpoints / f"global_step_{step}_hf"
            to = directory / writer.EXPORTED if directory else alone
            exported = [self._workers.policy.call_background(Policy.export_held, to)]
        stall = time.monotonic() - since
        self._under_way = _UnderWay(driver, directory, shares, exported, stall, since)

    def _confirm(self, *, wait: bool) -> None:
        under_way = self._under_way
        if under_way is None:
            return
        ready = all(part.ready(0) for part in (*under_way.shares, *under_way.exported))
        if wait and not ready and not self._said_that_it_waits:
            self._said_that_it_waits = True
            step = under_way.driver.run.step
            print(
                f"The next checkpoint waits until that of step {step} is written: "
                f"--save_steps {self._config.save_steps} is shorter than that takes.",
                flush=True,
            )
        if wait or ready:
            self._commit(under_way)

    def _commit(self, under_way: _UnderWay) -> None:
        self._under_way, self._owed = None, True  # it is tried once
        files = [file for part in under_way.shares for file in part.result()]
        exported = [one for part in under_way.exported for rank in part.result() for one in rank]
        if under_way.directory:
            below = (replace(one, name=f"{writer.EXPORTED}/{one.name}") for one in exported)
            keep = Retention(self._config.max_ckpt_num, self._config.max_ckpt_mem * 1e9)
            writer.commit(under_way.directory, under_way.driver, [*files, *below], keep)
            self._tell(under_way, files)
        self._owed = False

    def _tell(self, under_way: _UnderWay, files: Sequence[Written]) -> None:
        self._observer.checkpoint_written(
            Saved(
                under_way.driver.run.step,
                sum(file.bytes for file in files),
                under_way.stall_seconds,
                time.monotonic() - under_way.since,
            )
        )


def _dumped(pending: PendingRollouts | None) -> bytes | None:
    return pending.dump() if pending else None
