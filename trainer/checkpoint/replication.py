"""Snapshots in the memory of other nodes: the loss of a node loses no finished step.

On every node lives a Holder: a detached actor, which outlives the job; what it holds outlives Ray,
too, where our entrypoint has started that (`contract.fd_store`), and then its node, in files
(`trainer.checkpoint.spilled`). After a step each rank has a copy of its share of the training state
(`trainer.checkpoint.staging`). In the background it gives that
copy to the holder of its own node, which maps it, and sends it to the holder of the next node. So
each share lies on two nodes. A snapshot counts once all its shares are there; the step before is
forgotten only then. Who restores compares checksums, as with a checkpoint on disk.

For the driver there is `Peers`: `begin` after the copies of a step are made, `settle` before the
step is said to be finished; `newest` is what can be restored, by this attempt or by the one after a
crash, with `Learner.restore(snapshot)` on all ranks of all learners. `end` leaves no holder behind.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayError

from contract.journal import read_events, teller
from contract.progress import Progress
from contract.run_dir import RunFiles
from trainer.checkpoint import replica_ring as ring
from trainer.checkpoint.replica_ring import Ring
from trainer.checkpoint.replica_store import Bytes, NoRoomError, digest_of, pieces
from trainer.checkpoint.shard_manifest import Sheet, newest_whole
from trainer.checkpoint.spilled import Kept
from trainer.checkpoint.writer import DriverState, RunState
from trainer.cluster import shared_memory
from trainer.cluster.worker_group import Pending, WorkerGroup
from trainer.config.config import Config
from trainer.types import SnapshotLostError
from trainer.workers.protocols import Learner

if TYPE_CHECKING:
    from trainer.checkpoint.staging import Space
    from trainer.checkpoint.state import State

LOOK_SECONDS = 20.0
"""For all of them to say what they hold, at the start of an attempt."""
OTHERS_SECONDS = 0.5
"""For the others, once the newest step is found."""
KEEP_SECONDS = 5.0
"""For all holders to hand on what the run goes on from."""
FILES = "files"
"""Among the names of holders."""
MANY = 3
"""So many steps in a row without a snapshot, and no more are tried."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole one, in the memory of the nodes or in files of it."""

    driver: DriverState
    shares: tuple[tuple[Sheet, tuple[Any, ...]], ...]
    """Each with what has it: holders, or files."""

    @property
    def step(self) -> int:
        return self.driver.run.step

    @property
    def place(self) -> str:
        """Where it is had from, in words."""
        in_files = any(isinstance(have_it[0], Kept) for _, have_it in self.shares)
        return "files of the nodes' memory" if in_files else "the nodes' memory"


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the shares of a step go; the same for all ranks."""

    attempt: str
    step: int
    ranks: dict[str, int]
    """Role → its ranks."""
    run_state: str
    in_flight: bytes | None
    ring: Ring
    """A share goes to its own node's holder and to the next."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What came of handing over one share."""

    bytes: int
    fault: str | None = None
    """Why it is not held twice."""
    for_good: bool = False
    """Whether the next one would fail as well."""


def hand_over(space: Space, role: str, rank: int, to: Targets) -> Receipt:
    """Give a rank's copy to the holders of this node and the next. In the rank, beside its work."""
    size = space.contents.bytes
    data = np.frombuffer(space.buffer, np.uint8, count=size)
    sheet = Sheet(
        attempt=to.attempt,
        step=to.step,
        role=role,
        rank=rank,
        ranks=to.ranks,
        run_state=to.run_state,
        in_flight=to.in_flight if rank == 0 else None,
        contents=space.contents,
        digests=tuple(digest_of(data[a:b]) for a, b in pieces(size)),
    )
    own, other = ring.neighbours(to.ring, ray.get_runtime_context().get_node_id())
    try:
        if own is not None:
            ring.answer(own.attach.remote(sheet, space.address))
        ring.answer(ring.receive(other, sheet, space.source))
    except NoRoomError as error:
        return Receipt(size, f"a node would hold {error}", for_good=True)
    except Exception as error:  # training can do without a snapshot
        return Receipt(size, (str(error) or repr(error)).splitlines()[0])
    return Receipt(size)


def load(snapshot: Snapshot, role: str) -> State:
    """What all ranks of the role have handed over: mapped where this node holds it, else fetched.

    Raises SnapshotLostError where no holder has a share any more that is what it was.
    """
    from trainer.checkpoint.staging import state_in
    from trainer.checkpoint.state import merged

    here = shared_memory.node()
    parts = [
        state_in(_bytes_of(sheet, holders, here), sheet.contents)
        for sheet, holders in snapshot.shares
        if sheet.role == role
    ]
    return merged(parts)


def may_be_held(run: RunFiles) -> bool:
    """Whether an attempt before may have left snapshots in the memory of nodes.

    If progress.json is lost or damaged, the journal's steps tell of such an attempt.
    """
    before = Progress.read(run.progress)
    if before is None:
        return any(event["kind"] == "step" for event in read_events(run.journal))
    return before.in_memory is not None


class Peers:
    """The driver's hand on the holders of a run."""

    def __init__(self, config: Config) -> None:
        """Finds what an attempt before has left. A run that begins anew, or from a checkpoint that
        is named, does not go on from it, so that what is held is let go."""
        self._tell = teller(config.files.journal)
        self._memory = config.peer_snapshot_memory
        self._attempt = uuid.uuid4().hex
        self._namespace = ring.namespace_of(config)
        self._kept = Kept(config.files.kept, self._namespace)
        self._ring: Ring = ()
        self._pending: list[Pending[list[Receipt]]] = []
        self._step = 0
        self._said = False
        self._failed = 0
        self.whole: int | None = None
        """The newest step that is held twice."""
        self.on = config.peer_snapshot == "auto"
        self._goes_on = config.load_checkpoint and not config.load_step
        if not self._goes_on:
            self._release()
        elif not self.on:
            ring.release(self._namespace)
        elif may_be_held(config.files):
            self._build(_living())  # of holders that ended with their Ray, new ones have it

    def newest(self, at_most: int | None = None) -> Snapshot | None:
        """The newest whole snapshot that the living holders and files have together, of no step
        after `at_most`."""
        holders = ring.holders(self._namespace)
        found = self._found(holders, at_most) | {FILES: self._kept.sheets()}
        have_it: dict[str, Any] = holders | {FILES: self._kept}
        shares = newest_whole((one for sheets in found.values() for one in sheets), at_most)
        if not shares:
            return None
        have = {name: {sheet.key for sheet in sheets} for name, sheets in found.items()}
        return Snapshot(
            DriverState(
                RunState.parse(shares[0].run_state),
                next((one.in_flight for one in shares if one.in_flight is not None), None),
            ),
            tuple(
                (sheet, tuple(have_it[name] for name in found if sheet.key in have[name]))
                for sheet in shares
            ),
        )

    def _found(self, holders: Mapping[str, Any], at_most: int | None) -> dict[str, list[Sheet]]:
        """What each holder has, of those that answer in time.

        One whose node has just died is not waited for where the others have the newest step.
        """
        names = {holder.sheets.remote(): name for name, holder in holders.items()}
        found: dict[str, list[Sheet]] = {}
        waiting, until = list(names), time.monotonic() + LOOK_SECONDS
        while waiting and (left := until - time.monotonic()) > 0:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            for answer in done:
                with suppress(RayError):  # it, or its node, is gone
                    found[names[answer]] = ray.get(answer, timeout=0)
            shares = newest_whole((one for sheets in found.values() for one in sheets), at_most)
            if self.whole is not None and shares and shares[0].step >= self.whole:
                until = min(until, time.monotonic() + OTHERS_SECONDS)
        return found

    def begin(self, driver: DriverState, learners: Mapping[str, WorkerGroup[Learner]]) -> None:
        """Have every rank hand over the copy that it has made of the step; returns at once."""
        if not self._ready():
            return
        ranks = {role: len(group) for role, group in learners.items()}
        self._step = driver.run.step
        to = Targets(
            self._attempt, self._step, ranks, driver.run.dump(), driver.in_flight, self._ring
        )
        self._pending = [
            group.call_background(Learner.hand_over, to) for group in learners.values()
        ]

    def settle(self) -> None:
        """Wait for what `begin` has begun; then the steps before are forgotten.

        Raises what the death of a rank raises. That of a holder is said, and it is done without.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        receipts = [receipt for part in pending for receipt in part.result()]
        fault = next((receipt for receipt in receipts if receipt.fault), None)
        if fault is not None:
            self._give_up(fault)
            return
        try:
            ring.answers(holder.keep.remote(self._attempt, self._step) for _, holder in self._ring)
            if not self._said:
                self._tell_of_memory(sum(receipt.bytes for receipt in receipts))
        except RayError as error:
            self._give_up(Receipt(0, str(error).splitlines()[0]))
            return
        self.whole, self._failed = self._step, 0
        self._kept.forget()

    def amend(self, run: RunState) -> None:
        """More is known of the step that is held. Where that is lost, it is found out again."""
        for _, holder in self._ring:
            holder.amend.remote(self._attempt, run.step, run.dump())

    def goes_on_from(self, snapshot: Snapshot) -> None:
        """What is found finished is kept as if this attempt had made it: by who outlives Ray, too.

        The attempt before may have ended before it could say so to the holders.
        """
        sheet = snapshot.shares[0][0]
        holders = ring.holders(self._namespace).values()
        if kept := [holder.keep.remote(sheet.attempt, sheet.step) for holder in holders]:
            ray.wait(kept, num_returns=len(kept), timeout=KEEP_SECONDS)

    def branch_off(self, step: int) -> None:
        """The run went back to `step`: no share of a later one that was made before fits to those
        to come."""
        self._attempt = uuid.uuid4().hex
        if self.whole is not None and self.whole > step:
            self.whole = None

    def end(self) -> None:
        """Let all holders of this run go, whoever started them."""
        self.on, self._pending = False, []
        self._release()

    def _release(self) -> None:
        ring.release(self._namespace)
        self._kept.forget()

    def _ready(self) -> bool:
        """With a ring of holders, one on each living node."""
        if self.on and not self._ring:
            nodes = _living()
            if len(nodes) < 2:
                self._off("there is no other node")
                return False
            self._ring = self._build(nodes)
        return self.on

    def _build(self, nodes: Sequence[Mapping[str, Any]]) -> Ring:
        return ring.build(self._namespace, nodes, self._memory, goes_on=self._goes_on)

    def _give_up(self, fault: Receipt) -> None:
        self._failed += 1
        if fault.for_good:
            self._off(f"{fault.fault} (--peer_snapshot_memory)")
            self.end()
        elif self._failed == MANY:
            self._off(f"{MANY} in a row failed, the last one since {fault.fault}")
        else:
            self._say(f"No peer snapshot of step {self._step}: {fault.fault}.")
            self._ring = ()

    def _off(self, why: str) -> None:
        self.on = False
        self._say(f"Peer snapshots are off: {why}.")

    def _tell_of_memory(self, size: int) -> None:
        """Raises RayError."""
        held = max(ring.answers(holder.held.remote() for _, holder in self._ring))
        self._said = True
        self._say(
            f"Peer snapshots: the {size / 1e9:.3f} GB of each step lie on two of {len(self._ring)} "
            f"nodes; a node holds {2 * held / 1e9:.3f} GB at most."
        )

    def _say(self, sentence: str) -> None:
        self._tell("peers", sentence)


def _living() -> list[Mapping[str, Any]]:
    """Ray's rows of nodes."""
    return [row for row in ray.nodes() if row["Alive"]]


def _bytes_of(sheet: Sheet, holders: Iterable[Any], here: str) -> Bytes:
    """A buffer with the share's bytes."""
    fault = "no node has it any more"
    for holder in holders:
        try:
            data = _mapped_or_fetched(sheet, holder, here)
        except (RayError, OSError) as error:
            fault = str(error).splitlines()[0]
            continue
        digests = (digest_of(data[a:b]) for a, b in pieces(sheet.contents.bytes))
        if tuple(digests) == sheet.digests:
            return data
        fault = "its checksum differs"
    raise SnapshotLostError(f"share {sheet.role}-{sheet.rank} of step {sheet.step}: {fault}")


def _mapped_or_fetched(sheet: Sheet, holder: Any, here: str) -> Bytes:
    if isinstance(holder, Kept):
        return holder.read(sheet)
    size = sheet.contents.bytes
    if ring.answer(holder.node.remote()) == here:
        segment = shared_memory.attach(ring.answer(holder.address.remote(sheet.key)))
        return np.frombuffer(segment, np.uint8, count=size)
    data = np.empty(size, np.uint8)
    for start, end in pieces(size):
        data[start:end] = ring.answer(holder.piece.remote(sheet.key, start, end - start))
    return data
