"""Replicates each step to the memory of other nodes: losing a node loses no finished step.

Every node has a replica store: a detached actor that outlives the job. What it holds also outlives
Ray, if our entrypoint started Ray (`contract.files.fd_store`), and then the node's entrypoint, in
files (`trainer.checkpoint.spilled`). After a step each rank copies its shard of the training state
(`trainer.checkpoint.staging`). In the background it gives the copy to the store of its own node,
which maps it, and sends it to the store of the next node. So two nodes have each shard. A snapshot
counts once all its shards are there and outlive Ray; only then is the previous step deleted.
Restoring compares checksums, as with a checkpoint on disk.

The driver has a `Replicator`. It calls `replicate` after the copies of a step are made, and `wait`
before the step counts as finished. `newest` is the snapshot that this attempt, or the next one, can
restore with `Checkpointable.restore` on all ranks of all learners. `end` deletes all stores.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from contract.journal import journal_writer
from contract.journal_file.index import landmarks
from contract.progress import Progress
from contract.run_dir import RunFiles
from trainer.checkpoint import replica_ring as ring
from trainer.checkpoint.memory_shards import ShardManifest, newest_complete
from trainer.checkpoint.protocol import (
    Checkpointable,
    Receipt,
    ReplicaPlace,
    Snapshot,
    StoreName,
    Targets,
)
from trainer.checkpoint.spilled import SpilledReplicas
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster.calls import first_line
from trainer.cluster.worker_group import Pending, WorkerGroup
from trainer.config.config import Config

LOOK_SECONDS = 20.0
"""Seconds for all stores to list their shards, at the start of an attempt."""
OTHERS_SECONDS = 0.5
"""Seconds for the other stores, once the newest step is found."""
KEEP_SECONDS = 5.0
"""Seconds for all stores to keep the snapshot that the run resumes from."""
MAX_FAILURES = 3
"""After this many steps in a row without a snapshot, no more are tried."""


def may_be_held(run: RunFiles) -> bool:
    """Return whether an earlier attempt may have left snapshots in the memory of nodes.

    If progress.json is lost or damaged, the journal's steps are the evidence of such an attempt.
    """
    before = Progress.read(run.progress)
    if before is None:
        return any(landmarks(run.journal).events(["step"]))
    return before.in_memory is not None


class Replicator:
    """The driver's access to the replica stores of a run."""

    def __init__(self, config: Config) -> None:
        """Find what an earlier attempt left.

        A run that starts anew, or resumes from a checkpoint that is named, calls `discard`.
        """
        self._tell = journal_writer(config.files.journal)
        self._memory = config.peer_snapshot_memory
        self._attempt = uuid.uuid4().hex
        self._namespace = ring.namespace_of(config)
        self._spilled = SpilledReplicas(config.files.kept, self._namespace)
        self._ring: dict[StoreName, Any] = {}
        self._pending: list[Pending[list[Receipt]]] = []
        self._keeping: list[Any] = []
        """Requests to keep one snapshot alone that were unanswered when last looked at."""
        self._step = 0
        self._said = False
        self._failed = 0
        self.complete: int | None = None
        """The newest step of which two nodes hold a full copy."""
        self.on = config.peer_snapshot == "auto"
        self._goes_on = config.load_checkpoint and not config.load_step
        if not self._goes_on:
            return
        if not self.on:
            ring.release(self._namespace)
        elif may_be_held(config.files):
            self._build(_living())  # new stores take over from those that ended with their Ray

    def newest(self, at_most: int | None = None) -> Snapshot | None:
        """Return the newest complete snapshot in living stores and files, at most of `at_most`."""
        found: dict[ReplicaPlace, list[ShardManifest]] = {
            **self._found(ring.living(self._namespace), at_most),
            self._spilled: self._spilled.manifests(),
        }
        shards = newest_complete(itertools.chain(*found.values()), at_most)
        if not shards:
            return None
        have = {place: {shard.key for shard in shards} for place, shards in found.items()}
        return Snapshot(
            DriverState(
                RunState.parse(shards[0].run_state),
                next((shard.in_flight for shard in shards if shard.in_flight is not None), None),
            ),
            tuple(
                (shard, tuple(place for place in found if shard.key in have[place]))
                for shard in shards
            ),
        )

    def _found(
        self, stores: Mapping[StoreName, Any], at_most: int | None
    ) -> dict[ReplicaPlace, list[ShardManifest]]:
        """Return the shards of each store that answers in time.

        If the others have the newest step, a store whose node has just died is not waited for.
        """
        names = {store.manifests.remote(): name for name, store in stores.items()}
        found: dict[ReplicaPlace, list[ShardManifest]] = {}
        waiting, until = list(names), time.monotonic() + LOOK_SECONDS
        while waiting and (left := until - time.monotonic()) > 0:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            for answer in done:
                with suppress(RayError):  # it, or its node, is gone
                    found[names[answer]] = ray.get(answer, timeout=0)
            shards = newest_complete(itertools.chain(*found.values()), at_most)
            if self.complete is not None and shards and shards[0].step >= self.complete:
                until = min(until, time.monotonic() + OTHERS_SECONDS)
        return found

    def replicate(
        self, driver: DriverState, learners: Mapping[str, WorkerGroup[Checkpointable]]
    ) -> None:
        """Make every rank send the copy that it made of the step; returns at once."""
        if not self._ready():
            return
        ranks = {role: len(group) for role, group in learners.items()}
        self._step = driver.run.step
        if self._await_kept(0):  # executed late, it would delete this step's shards
            self._give_up(Receipt(0, "a node has not answered since the snapshot before"))
            return
        stores = tuple(self._ring)
        to = Targets(self._attempt, self._step, ranks, driver.run.dump(), driver.in_flight, stores)
        self._pending = [
            group.call_background(Checkpointable.replicate, to) for group in learners.values()
        ]

    def wait(self) -> bool:
        """Wait for what `replicate` began; then delete the steps before.

        Return whether the step is finished: two nodes hold it, or replication is off. Raises what
        the death of a rank raises. The loss of a store is reported, and tolerated.
        """
        pending, self._pending = self._pending, []
        if pending:
            self._complete([receipt for part in pending for receipt in part.result()])
        return not self.on or self.complete == self._step

    def _complete(self, receipts: Sequence[Receipt]) -> None:
        fault = next((receipt for receipt in receipts if receipt.fault), None)
        if fault is not None:
            self._give_up(fault)
            return
        try:
            # All of them before one deletes the step before: all their Rays may end meanwhile.
            ring.answers(store.deposit.remote() for store in self._ring.values())
        except RayError as error:
            self._give_up(Receipt(0, first_line(error)))
            return
        self.complete = self._step  # also if a store dies while the steps before are deleted
        try:
            ring.answers(self._keep(self._ring.values(), self._attempt, self._step))
            if not self._said:
                self._tell_of_memory(sum(receipt.bytes for receipt in receipts))
        except RayError as error:
            self._give_up(Receipt(0, first_line(error)))
            return
        self._failed = 0
        self._spilled.forget()

    def amend(self, run: RunState) -> None:
        """Replace the run state of the step that is held. If that is lost, it is computed again."""
        for store in self._ring.values():
            store.amend.remote(self._attempt, run.step, run.dump())

    def adopt(self, snapshot: Snapshot) -> None:
        """Make the stores keep this snapshot as if this attempt had made it, beyond Ray's end too.

        The run goes on from it. Whoever made it may have ended before it could tell the stores to.
        """
        self.complete, shard = snapshot.step, snapshot.shards[0][0]
        stores = ring.living(self._namespace).values()
        self._keep(stores, shard.attempt, shard.step)
        self._await_kept(KEEP_SECONDS)
        self._ring = {}  # other nodes may be there now

    def _keep(self, stores: Iterable[Any], attempt: str, step: int) -> list[Any]:
        """Ask stores to delete all but that snapshot and later steps of its attempt."""
        asked = [store.keep.remote(attempt, step) for store in stores]
        self._keeping += asked
        return asked

    def _await_kept(self, seconds: float) -> bool:
        """Return whether such a request is unanswered after so long."""
        if asked := self._keeping:
            _, self._keeping = ray.wait(asked, num_returns=len(asked), timeout=seconds)
        return bool(self._keeping)

    def branch_off(self, step: int) -> None:
        """The run went back to `step`: shards of later steps made so far fit no later ones."""
        self._attempt = uuid.uuid4().hex
        if self.complete is not None and self.complete > step:
            self.complete = None

    def end(self) -> None:
        """Delete all replica stores of this run, whoever started them."""
        self.on, self._pending = False, []
        self.discard()

    def discard(self) -> None:
        """Delete what an earlier attempt left: the run has begun, and not from there."""
        ring.release(self._namespace)
        self._spilled.forget()

    def _ready(self) -> bool:
        """Return whether there is a ring of stores, one on each living node."""
        if self.on and not self._ring:
            nodes = _living()
            if len(nodes) < 2:
                self._off("there is no other node")
                return False
            self._ring = self._build(nodes)
        return self.on

    def _build(self, nodes: Sequence[Mapping[str, Any]]) -> dict[StoreName, Any]:
        return ring.build(self._namespace, nodes, self._memory, goes_on=self._goes_on)

    def _give_up(self, fault: Receipt) -> None:
        self._failed += 1
        if fault.for_good:
            self._off(f"{fault.fault} (--peer_snapshot_memory)")
            self.end()
        elif self._failed == MAX_FAILURES:
            self._off(f"{MAX_FAILURES} in a row failed, the last one since {fault.fault}")
        else:
            self._say(f"No peer snapshot of step {self._step}: {fault.fault}.")
            self._ring = {}

    def _off(self, why: str) -> None:
        self.on = False
        self._say(f"Peer snapshots are off: {why}.")

    def _tell_of_memory(self, size: int) -> None:
        """Raises RayError."""
        held = max(ring.answers(store.held.remote() for store in self._ring.values()))
        self._said = True
        self._say(
            f"Peer snapshots: the {size / 1e9:.3f} GB of each step lie on two of {len(self._ring)} "
            f"nodes; a node holds {2 * held / 1e9:.3f} GB at most."
        )

    def _say(self, sentence: str) -> None:
        self._tell("peers", sentence)


def _living() -> list[Mapping[str, Any]]:
    """Return Ray's rows of living nodes."""
    return [row for row in ray.nodes() if row["Alive"]]
