"""Recovery from the loss of a process, inside a running attempt.

The lost process's group restarts, and the learners are restored to the newest state that is held.
The driver, the engines and the other groups keep running. A step is a function of
(state, seed, step), so a step that is repeated from the same state has the same result. If the
newest step was lost before its copy was complete, training returns to the newest step that is held.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from contract.journal import WriteEvent
from contract.manifest import checkpoint_path, fault_of, lineage_of, steps_on_disk
from trainer.checkpoint import head_file_store
from trainer.checkpoint.protocol import Snapshot
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.restore_progress import reported
from trainer.checkpoint.resume import restore_learners
from trainer.checkpoint.writer import RunState
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.types import (
    BeyondRepairError,
    CorruptedRankError,
    LostWorkerError,
    NoRoomError,
    SnapshotLostError,
)
from trainer.workers.groups import WorkerGroups


class StateStore(Protocol):
    """A place that keeps the training state of finished steps."""

    def newest(self, steps: range) -> RunState | None:
        """Return the run state of the newest step in `steps` that the store has completely."""

    def restore(self, workers: WorkerGroups, step: int) -> None:
        """Restore all ranks of all learners. Raises SnapshotLostError if the state is gone."""

    @property
    def complete(self) -> int | None:
        """The newest step that nodes are known to hold, also while they are out of reach."""

    def __str__(self) -> str:
        """Return the store's name, for use after "from"."""


@dataclass(frozen=True, slots=True)
class CheckpointsOnDisk:
    """A StateStore: the run's checkpoint directories."""

    config: Config

    def newest(self, steps: range) -> RunState | None:
        ours = lineage_of(self.config.files)
        for step in steps_on_disk(self.config.checkpoints):
            directory = checkpoint_path(self.config.checkpoints, step)
            if step in steps and fault_of(directory, lineage=ours) is None:
                return RunState.read(directory)
        return None

    def restore(self, workers: WorkerGroups, step: int) -> None:
        directory = checkpoint_path(self.config.checkpoints, step)
        source = head_file_store.place(self.config, directory)
        try:
            with reported(self.config, source, step):
                restore_learners(workers.learners, source)
        except LostWorkerError:
            raise
        except Exception:
            if (fault := fault_of(directory, checksums=False)) is None:
                raise
            raise SnapshotLostError(f"{directory}: {fault}") from None

    @property
    def complete(self) -> None:
        """Unknown before each is read: what is whole on the disk is there."""

    def __str__(self) -> str:
        return "the checkpoint"


@dataclass(slots=True)
class ReplicasInMemory:
    """A StateStore: the copies of each step in the memory of the nodes."""

    peers: Replicator
    _found: Snapshot | None = None
    """The snapshot of the last call of `newest`. Another query might find a different one."""

    def newest(self, steps: range) -> RunState | None:
        snapshot = self._found = self.peers.newest(steps.stop - 1)
        return snapshot.driver.run if snapshot and snapshot.step in steps else None

    def restore(self, workers: WorkerGroups, step: int) -> None:
        if self._found is None or self._found.step != step:
            raise SnapshotLostError(f"there is no snapshot of step {step}")
        restore_learners(workers.learners, self._found)
        self.peers.adopt(self._found)  # its copies are not overwritten by the step after it

    @property
    def complete(self) -> int | None:
        return self.peers.complete

    def __str__(self) -> str:
        return "the nodes' memory"


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The run state that training continues from."""

    run: RunState
    store: StateStore | None = None
    """The store that the learners were restored from; None if no learner was restored."""
    roles: tuple[str, ...] = ()
    """The roles whose processes were restarted."""
    seconds: float = 0.0
    """The duration of the recovery."""


@dataclass(slots=True)
class Recovery:
    """Restarts lost groups and restores the learners."""

    workers: WorkerGroups
    stores: Sequence[StateStore]
    tell: WriteEvent
    fresh: RunState | None = None
    """The run state before the first step; None if this attempt began after that."""
    _corrupted: set[str] = field(default_factory=set)
    """Nodes of ranks whose bits were wrong."""

    def recover(self, loss: LostWorkerError, state: RunState, oldest: int = 0) -> RecoveryPoint:
        """Bring every model back to `state`, or to the newest state that is held.

        The caller must publish the weights again, and `report` the recovery. `oldest`: the first
        step that the rollouts can return to.

        Raises BeyondRepairError if no such state exists, no node has room, the same role was
        restarted too often, or a node's bits were wrong a second time. Raises LostWorkerError if
        another process is lost meanwhile.
        """
        began = time.monotonic()
        self._exclude(loss)
        roles = self._lost_with(loss)
        for role in roles:
            self.workers.restarts.use(role, loss)
        # Their imports and models load at the same time, and while stores are asked for a state.
        for role in roles:
            self._begin(role, loss)
        if any(role in self.workers.learners for role in roles):
            point = self._restored(loss, state, oldest, roles)
        else:
            point = RecoveryPoint(state, roles=roles)
        for role in point.roles:
            self._await_start(role, loss)
        return replace(point, seconds=time.monotonic() - began)

    def _lost_with(self, loss: LostWorkerError) -> tuple[str, ...]:
        """Return the roles that have lost a process: of a lost node, all that had one there.

        The engine pool restarts a lost engine itself, when the next weights are due.
        """
        if loss.role == Role.ENGINE:
            return ()
        groups = self._groups
        if not _on_lost_node(groups[loss.role]):
            return (loss.role,)
        others = (role for role in groups if role != loss.role)
        return (loss.role, *(role for role in others if _on_lost_node(groups[role])))

    @property
    def _groups(self) -> dict[str, WorkerGroup[Any]]:
        """Role → group of all models besides the engines."""
        frozen = {Role.REFERENCE: self.workers.reference, Role.REWARD: self.workers.reward}
        there: dict[str, WorkerGroup[Any]] = {role: one for role, one in frozen.items() if one}
        return {**self.workers.learners, **there}

    def _exclude(self, loss: LostWorkerError) -> None:
        """Raises BeyondRepairError if the bits of a rank on the same node were wrong before.

        The launcher then evicts the node.
        """
        if not isinstance(loss, CorruptedRankError) or loss.place is None:
            return
        node = loss.place.node
        if node in self._corrupted:
            raise BeyondRepairError(f"{loss}. It is the second time on node {node}") from None
        self._corrupted.add(node)

    def _restored(
        self, loss: LostWorkerError, state: RunState, oldest: int, restarted: tuple[str, ...]
    ) -> RecoveryPoint:
        """Restore all learners from the store with the newest step.

        `restarted`: the roles whose restart has begun. Before the first step no store has a state:
        then all learners restart from their first weights.
        """
        newest, tried = [state.step for _ in self.stores], False
        while True:
            point = self._newest(loss, newest, state, oldest)
            if not tried:
                self._refuse_older(loss, point, state)
            if point.store is None:
                # A restore that failed may have changed those that have started, too.
                fresh = () if tried else restarted
                for role in [role for role in self.workers.learners if role not in fresh]:
                    self._begin(role, loss)
                return replace(point, roles=(*dict.fromkeys([*self.workers.learners, *restarted]),))
            for role in [role for role in restarted if role in self.workers.learners]:
                self._await_start(role, loss)
            try:
                tried = True
                point.store.restore(self.workers, point.run.step)
                return replace(point, roles=restarted)
            except SnapshotLostError:  # try the other store, or an older step
                newest[self.stores.index(point.store)] = point.run.step - 1

    def _refuse_older(self, loss: LostWorkerError, point: RecoveryPoint, state: RunState) -> None:
        """Raises BeyondRepairError if nodes hold a newer step, and none of them can be reached.

        That is so if all of them start their Ray again. The next attempt waits for them.
        """
        held = max((store.complete or 0 for store in self.stores), default=0)
        if point.run.step < held <= state.step:
            raise BeyondRepairError(
                f"{loss}. The nodes that hold step {held} in memory cannot be reached now"
            ) from None

    def _newest(
        self, loss: LostWorkerError, newest: Sequence[int], state: RunState, oldest: int
    ) -> RecoveryPoint:
        """Return the newest step that a store has. The first store wins a tie.

        `newest`: for each store, the newest step that is looked for there.
        """
        if state.step == 0:
            return RecoveryPoint(state)
        found, above = None, max(1, oldest)
        for store, step in zip(self.stores, newest, strict=True):
            if run := store.newest(range(above, step + 1)):
                same = run.step == state.step
                found, above = RecoveryPoint(state if same else run, store), run.step + 1
        if found is None and self.fresh and oldest == 0:
            found = RecoveryPoint(self.fresh)
        if found is None:
            raise BeyondRepairError(
                f"{loss}. No saved state of step {max(1, oldest)} or later is left"
            ) from None
        return found

    def _begin(self, role: str, loss: LostWorkerError) -> None:
        """Start all processes of the role again."""
        group = self._groups[role]
        try:
            group.restart(range(len(group)))
        except NoRoomError as error:
            raise BeyondRepairError(f"{loss}; {error}") from None

    def _await_start(self, role: str, loss: LostWorkerError) -> None:
        """Wait until all processes of the role have loaded their model."""
        if not self._groups[role].wait_started(self.workers.engines.patience.start):
            raise BeyondRepairError(f"{loss}. The {role} does not start again")

    def report(self, loss: LostWorkerError, point: RecoveryPoint, state: RunState) -> None:
        """Journal a recovery. The engine pool journals that of an engine itself."""
        if loss.role == Role.ENGINE:
            return
        step = point.run.step
        *others, last = point.roles
        restarted = f"{', '.join(others)} and {last}" if others else last
        repeated = f"step {step + 1} is" if step == state.step else f"steps from {step + 1} on are"
        where = f"from {point.store} " if point.store else ""
        self.tell(
            "rank-replaced",
            f"The {loss.role} lost a process ({loss.how}): {restarted} restarted, and {repeated} "
            f"repeated {where}after {point.seconds:.1f} s.",
            role=loss.role,
            step=step,
            finished=state.step,
            seconds=round(point.seconds, 3),
        )


def _on_lost_node(group: WorkerGroup[Any]) -> bool:
    return any(group.node_lost(worker) for worker in range(len(group)))
