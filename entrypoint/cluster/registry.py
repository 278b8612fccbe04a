"""The head's registry of nodes: who has checked in, was refused, was evicted, or is leaving.

Every method may be called from any thread. A method waits only for the registry's own lock.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract.durations import duration
from contract.resources import NodeResources
from entrypoint.cluster import lost_nodes, places, reported_differences, roll
from entrypoint.cluster import refusal as refusals
from entrypoint.cluster.gpu_history import GpuHistory
from entrypoint.cluster.health import Health
from entrypoint.cluster.lost_nodes import Attendance, Evicted, Known
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.roll import Places, RegisteredNode
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.net.sockets import peer_address
from entrypoint.run import run_dir_reads


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInResult:
    """How the head answers a check-in."""

    refusal: str | None = None
    retry_because: str | None = None
    """Why the head cannot answer yet; the node retries."""
    is_new: bool = True
    """The check-in says something that the head did not know."""
    had_joined: bool = False
    """The node had joined Ray before; by asking again it says that its earlier Ray is gone."""
    own_key: str = ""
    """The node's own key, with which it gets a new token; "" if it is refused."""
    bare: bool = False
    """The node is a spare, and its Ray is to offer nothing."""


@dataclass(frozen=True, slots=True)
class Spares:
    """The nodes that a run has besides its workers."""

    count: int = 0
    """That are expected."""
    bare: bool = False
    """Ray places the job's work as it likes, so that their Ray has to offer nothing."""
    kept: bool = False
    """A node beyond the workers is a spare, also if none is expected."""
    patience: float = math.inf
    """Seconds for which a place is empty before a node that left because it is slow may have it."""


class NodeRegistry:
    def __init__(
        self,
        me: NodeInfo,
        expected: int,
        incarnation: str,
        skipped_checks: frozenset[str] = frozenset(),
        spares: Spares = Spares(),
    ) -> None:
        """`me`: the head itself; `skipped_checks`: checks between nodes that are not asked."""
        self.me = me
        self.incarnation = incarnation
        """A worker that sees another value leaves its Ray and joins again."""
        self.expected = expected
        self._spares = spares
        self._holders: tuple[str, ...] = ()
        self._held = False
        self.gpu_history = GpuHistory()
        self.health = Health()
        self._own_gpus: Sequence[GpuUse] = ()
        self._skipped_checks = skipped_checks
        self._began = self._whole_at = time.monotonic()
        self._lock = threading.Lock()
        self._entries: dict[str, RegisteredNode] = {}
        self._refused: dict[str, str] = {}
        self._blind_since: dict[str, float] = {}
        """Nodes whose storage is not the head's, and when that was first noticed."""
        self._differences: list[str] = []
        self._acknowledged: set[str] = set()
        self._leaving: set[str] = set()
        self._renewed: set[str] = set()
        """Workers that have to join again and have not checked in yet."""
        self._forgotten: dict[str, float] = {}
        """Worker that left or is to join again, and has not checked in since → since when."""
        self._evicted: dict[tuple[str, str], Evicted] = {}
        """By name and address."""
        self._unwanted: Mapping[str, str] = {}
        """Nodes in whose place others are to come before they leave → why."""
        self._joined: dict[str, NodeInfo] = {}
        """What each worker said last of those that have ever joined, and the members of the head
        before this one."""
        self._oom_counts: dict[str, int] = {}
        """Worker → the newest count of OOM kills that it reported."""
        self._oom_kills: Counter[str] = Counter()
        """Worker → OOM kills since its first report."""

    def check_in(self, info: NodeInfo, source: str) -> CheckInResult:
        """Answer a check-in. `source`: the connection's address; "" if unknown."""
        with self._lock:
            now = time.monotonic()
            known = self._entries.get(info.node)
            is_new = known is None or known.info.joined != info.joined or not known.present(now)
            if wait := self._not_yet(info, now):
                return CheckInResult(retry_because=wait, is_new=is_new)
            self._count(info.node, info.oom_kills)
            joined = info.node in self._renewed or (known is not None and known.info.joined)
            had_joined = joined and not info.joined
            if info.unfit and known is not None and known.present(now):
                had_joined = False  # a second node of this name, which does not start
            if had_joined:
                self._renewed.discard(info.node)
            refusal = self._take(info, source, now)
            entry = None if refusal else self._entries[info.node]
            if entry and not info.joined:
                entry.bare = self._spares.bare and info.node not in self._workers(now)
            return CheckInResult(
                refusal=refusal,
                is_new=is_new,
                had_joined=had_joined,
                own_key=entry.own_key if entry else "",
                bare=entry.bare if entry else False,
            )

    def own_keys(self) -> dict[str, str]:
        """Return the workers that are there → their own keys."""
        with self._lock:
            now = time.monotonic()
            return {name: e.own_key for name, e in self._entries.items() if e.present(now)}

    def new_differences(self) -> list[str]:
        """Return sentences on how the nodes differ, each once, when all workers have joined."""
        with self._lock:
            entries = list(self._entries.values())
            if sum(entry.info.joined for entry in entries) < self.expected:
                return []
            nodes = [RegisteredNode(self.me), *entries]
            found = reported_differences.differences(nodes, self._skipped_checks)
            new = [sentence for sentence in found if sentence not in self._differences]
            self._differences = found
            return new

    def roll_state(self) -> roll.RollState:
        with self._lock:
            staying = {name: self._entries[name] for name in self._in_turn()}
            now = time.monotonic()
            off = roll.OffRoll(self._refused, self._forgotten)
            state = roll.roll_state(staying, self._places, now, self._began, off)
            if state.complete:
                self._whole_at = now
            return state

    def is_spare(self, node: str) -> bool:
        """Whether a node is there, has joined, and has no place. All polls ask: it is cheap."""
        with self._lock:
            entry, now = self._entries.get(node), time.monotonic()
            if entry is None or node in self._leaving or not entry.info.joined:
                return False
            has_place = self._places.settled(node)
            if has_place is None:
                has_place = node in self._workers(now)
            return entry.present(now) and not has_place

    def _workers(self, now: float) -> tuple[str, ...]:
        """Return who has a place, of the nodes that are heard and stay; with the lock held."""
        heard = [name for name in self._in_turn() if self._entries[name].present(now)]
        return self._places.workers(heard)

    def _in_turn(self) -> list[str]:
        """Return the nodes that stay, as they get free places: worse ones last; with the lock."""
        worse = {change.node for change in self.health.known()}
        staying = (name for name in self._entries if name not in self._leaving)
        return sorted(staying, key=lambda name: name in worse)

    @property
    def _places(self) -> Places:
        spares = self._spares
        holders, held, kept = self._holders, self._held, spares.kept
        return Places(self.expected, spares.count, spares.bare, holders, held, kept)

    def hold_places(self, holders: Sequence[str]) -> None:
        """Note that the job begins on these workers: they keep their places if they are lost."""
        with self._lock:
            self._holders, self._held = tuple(holders), True

    def free_places(self) -> None:
        """Note that no job runs: spares take the places of nodes that are not there."""
        with self._lock:
            self._held = False

    def move_place(self, lost: str, to: str) -> None:
        """Note that the job's work on the node `lost` is on the node `to` now."""
        with self._lock:
            self._holders = places.moved(self._holders, lost, to)

    def node_infos(self) -> list[NodeInfo]:
        """Return the NodeInfo of the head and of every present worker that has joined."""
        return [self.me, *self.roll_state().node_infos]

    def offers(self) -> list[NodeResources]:
        """Return what the nodes offer to a job, the head's first; [] until the roll is complete."""
        state = self.roll_state()
        return [info.offer for info in (self.me, *state.node_infos)] if state.complete else []

    def new_incarnation(self) -> None:
        """Forget all workers: each leaves its Ray and joins again."""
        with self._lock:
            self.incarnation = uuid.uuid4().hex[:12]
            for worker in list(self._entries):
                self._forget(worker)
            self._renewed.clear()

    def attendance(self, patience: float) -> Attendance:
        """Return which nodes are there or start, and which were there and are gone.

        `patience`: seconds of silence after which a node counts as gone.
        """
        with self._lock:
            now = time.monotonic()
            known = Known(
                self._joined,
                self._entries,
                self._refused,
                self._forgotten,
                self._evicted,
                self._unwanted,
            )
            return lost_nodes.attendance(known, now, patience)

    def remember(self, members: Sequence[NodeInfo]) -> None:
        """Note who was in the cluster of the head before this one, and may come back."""
        with self._lock:
            for info in members:
                self._joined.setdefault(info.node, info)
                self._forgotten.setdefault(info.node, time.monotonic())

    def silent(self) -> frozenset[str]:
        """Return the names of workers that had joined and are not heard any more."""
        with self._lock:
            now = time.monotonic()
            entries = self._entries.items()
            gone = {name for name, e in entries if e.info.joined and not e.present(now)}
            return frozenset(gone - self._leaving)

    def worker_at(self, address: str) -> str | None:
        with self._lock:
            named = (name for name, e in self._entries.items() if e.info.address == address)
            return next(named, None)

    def leaves(self, worker: str) -> bool:
        """Note that a worker asks to leave. Return False if it never checked in."""
        with self._lock:
            if worker not in self._entries:
                return False
            self._leaving.add(worker)
            return True

    def is_leaving(self, worker: str) -> bool:
        with self._lock:
            return worker in self._leaving

    def release_leaving(self) -> bool:
        """Forget the workers that asked to leave. Return whether there were any."""
        with self._lock:
            for worker in self._leaving:
                self._forget(worker)
            anyone = bool(self._leaving)
            self._leaving.clear()
            return anyone

    def evict(self, worker: str, why: str, seconds: float = 0.0) -> None:
        """Forget a worker and refuse it until its checks have passed again.

        `seconds`: for which it is refused even so. A node at another address may take its name.
        """
        with self._lock:
            entry = self._entries.pop(worker, None)
            info = entry.info if entry else self._joined.get(worker)  # it may be joining again
            if info is not None:
                until = time.monotonic() + seconds
                self._evicted[worker, info.address] = Evicted(why, info.examined, until)

    def refuse(self, worker: str, address: str, why: str, seconds: float) -> None:
        """Refuse a node for so many seconds, which an earlier head has evicted."""
        with self._lock:
            self._evicted[worker, address] = Evicted(why, "", time.monotonic() + seconds)

    def replace_first(self, unwanted: Mapping[str, str]) -> None:
        """Note the nodes in whose place others are to come before they leave, and why."""
        with self._lock:
            self._unwanted = unwanted

    def forget(self, worker: str) -> None:
        """Have a worker check in again, which ends its present Ray."""
        with self._lock:
            if self._forget(worker):
                self._renewed.add(worker)

    def _forget(self, worker: str) -> bool:
        """Take a worker off the roll; return whether it was there. With the lock held."""
        if self._entries.pop(worker, None) is None:
            return False
        self._forgotten[worker] = time.monotonic()
        return True

    def own_gpus(self, gpus: Sequence[GpuUse]) -> None:
        """Note the use of the head's own GPUs."""
        self._own_gpus = gpus
        self.gpu_history.add(gpus)

    def gpu_uses(self) -> dict[str, Sequence[GpuUse]]:
        """Return the use of the GPUs of all nodes, as they told it last."""
        with self._lock:
            of_workers = {name: entry.gpus for name, entry in self._entries.items()}
        return {self.me.node: self._own_gpus, **of_workers}

    def poll_opened(
        self, node: str, oom_kills: int | None = None, gpus: Sequence[GpuUse] = ()
    ) -> RegisteredNode | None:
        """Note that a node has opened a long poll, its sign of life; None if it is unknown.

        `oom_kills`: as in NodeInfo; `gpus`: the present use of its GPUs.
        """
        with self._lock:
            entry = self._entries.get(node)
            if entry is not None:
                entry.asking += 1
                entry.asked_at = time.monotonic()
                entry.gpus = gpus
                if oom_kills is not None:
                    self._count(node, oom_kills)
        if entry is not None:
            self.gpu_history.add(gpus)
        return entry

    def heard_since(self, moment: float) -> bool:
        """Whether every present node that polls has opened a poll since `moment` (seconds)."""
        with self._lock:
            now = time.monotonic()
            asking = [e.asked_at for e in self._entries.values() if e.asked_at and e.present(now)]
            return all(asked_at >= moment for asked_at in asking)

    def polling(self, moment: float) -> frozenset[str]:
        """Return the members that have opened a poll since `moment` (seconds), and stay."""
        with self._lock:
            entries = self._entries.items()
            asking = {n for n, e in entries if e.info.joined and e.asked_at >= moment}
            return frozenset(asking - self._leaving)

    def oom_kills(self) -> dict[str, int]:
        """Return, for each worker, how many processes the kernel has killed for lack of memory."""
        with self._lock:
            return dict(self._oom_kills)

    def poll_closed(self, entry: RegisteredNode, *, hung_up: bool) -> None:
        """Note that a poll was answered, or that its connection ended (`hung_up`)."""
        with self._lock:
            entry.asking -= 1
            entry.seen_at, entry.hung_up = time.monotonic(), hung_up

    def acknowledge(self, node: str) -> None:
        """Note that a node has received the outcome."""
        with self._lock:
            self._acknowledged.add(node)

    def unacknowledged(self) -> set[str]:
        """Names of the workers that are present and have not received the outcome."""
        with self._lock:
            now = time.monotonic()
            return {n for n, e in self._entries.items() if e.present(now)} - self._acknowledged

    def state(self, *, brief: bool = False) -> dict[str, Any]:
        """The roll as JSON, for programs and for the page.

        A silent worker in whose place another one has come is left out. `brief`: without the nodes
        about which there is nothing to say.
        """
        state = self.roll_state()
        own = RegisteredNode(replace(self.me, joined=True), asking=1)
        own.gpus = self._own_gpus
        with self._lock:
            now = time.monotonic()
            entries = [entry for _, entry in sorted(self._entries.items())]
            shown = [e for e in entries if e.present(now) or not state.with_spares]
            return {
                "head": self.me.node,
                "head_node": own.as_dict(now),
                "expected_workers": state.expected,
                "present": len(state.present),
                "expected_spares": state.expected_spares,
                "spares": list(state.spares),
                "missing": [worker.as_dict() for worker in state.missing],
                "refused": dict(self._refused),
                "differences": list(self._differences),
                "nodes": [e.as_dict(now) for e in shown if not (brief and e.is_well(now))],
            }

    def _count(self, node: str, oom_kills: int) -> None:
        """Add a worker's new OOM kills. A restarted container counts from 0 again."""
        before = self._oom_counts.get(node, oom_kills)
        self._oom_kills[node] += max(0, oom_kills - before)
        self._oom_counts[node] = oom_kills

    def _not_yet(self, info: NodeInfo, now: float) -> str | None:
        """Return why this node has to retry; with the lock held."""
        if taken := refusals.name_taken(info, self._entries, now):
            return taken
        blind = refusals.other_storage(info, self.me, self._skipped_checks)
        if blind is None:
            self._blind_since.pop(info.node, None)
        elif (
            now - self._blind_since.setdefault(info.node, now) < run_dir_reads.STORAGE_GRACE_SECONDS
        ):
            return blind
        return None

    def _take(self, info: NodeInfo, source: str, now: float) -> str | None:
        """Put a node on the roll, or return why not; with the lock held."""
        self._forgotten.pop(info.node, None)
        skew = 0.0 if info.clock is None else info.clock - time.time()
        reason = refusals.refusal(info, self.me, skew, self._skipped_checks)
        reason = reason or refusals.other_storage(info, self.me, self._skipped_checks)
        reason = reason or self._still_evicted(info)
        if reason:
            self._refused[info.node] = reason
            return reason
        self._refused.pop(info.node, None)
        entry = self._entries.setdefault(info.node, RegisteredNode(info, now))
        entry.info, entry.seen_at, entry.hung_up = info, now, False
        entry.own_key = f"rollcall-node-{secrets.token_hex(24)}"
        entry.source, entry.skew = peer_address(source, info.address), skew
        self._acknowledged.discard(info.node)
        if info.joined:
            before = self._joined.get(info.node, info)
            if info.address != before.address or info.examined not in ("", before.examined):
                self.health.forget(info.node)  # another machine, or examined anew
            self._joined[info.node] = info
        return None

    def _still_evicted(self, info: NodeInfo) -> str | None:
        """Return why an evicted node stays out; None if it has passed its checks since.

        A slow node is better than a place that stays empty.
        """
        known = self._evicted.get((info.node, info.address))
        if known is None:
            return None
        now = time.monotonic()
        if (rest := known.until - now) > 0:
            lacking = len(self._workers(now)) < self.expected
            if lacking and now - self._whole_at > self._spares.patience:
                del self._evicted[info.node, info.address]
                return None
            return f"{known.why}; it may be back in {duration(rest)}"
        if info.examined and info.examined != known.life:
            del self._evicted[info.node, info.address]
            return None
        return known.why
