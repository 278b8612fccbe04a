"""Puts the living nodes of an existing Ray on the roll, in place of workers that check in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from entrypoint.cluster import refusal, reported_differences, storage_proof
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.roll import RegisteredNode
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.node.journal_observer import JournalObserver
from entrypoint.node.ray_state import Alive
from entrypoint.processes.inbox import UnfitRayError
from entrypoint.run.run_dir_reads import STORAGE_GRACE_SECONDS

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
"""A node that is refused is examined again after this time."""


@dataclass(slots=True)
class _Node:
    """A living node of Ray besides its head."""

    alive: Alive
    info: NodeInfo | None = None
    """What it says of itself; None: it is to be examined."""
    entry: RegisteredNode | None = None
    """Its entry on the roll; None: it is not on it."""
    refused_at: float | None = None


@dataclass(slots=True)
class RayRoll:
    settings: Settings
    registry: NodeRegistry
    observer: JournalObserver
    stop: threading.Event
    """Set if this node is asked to stop."""
    head: str = ""
    """Ray's id of its head node."""
    _nodes: dict[str, _Node] = field(default_factory=dict)

    def begin(self, living: Sequence[Alive], found: Mapping[str, NodeInfo]) -> None:
        """Begin with nodes that are all examined. Raises UnfitRayError, InterruptedWaitError."""
        head = next(node for node in living if node.is_head)
        self._take_head(head, found[head.id])
        self.head = head.id
        self._nodes = {node.id: _Node(node, found[node.id]) for node in living if node is not head}
        for node in self._nodes.values():
            self._admit(node)

    def clear(self) -> None:
        self._nodes.clear()

    def look(self, living: Mapping[str, Alive]) -> None:
        """Bring the roll up to what Ray says now. New nodes are to be examined first."""
        for gone in self._nodes.keys() - living.keys():
            self._drop(self._nodes.pop(gone))
        for new in living.keys() - self._nodes.keys() - {self.head}:
            self._nodes[new] = _Node(living[new])
        for node in self._nodes.values():
            self._keep(node)

    def unexamined(self) -> list[Alive]:
        return [node.alive for node in self._nodes.values() if node.info is None]

    def take(self, found: Mapping[str, NodeInfo]) -> None:
        """Take what nodes say of themselves; the next look admits them."""
        for node_id in found.keys() & self._nodes.keys():
            self._nodes[node_id].info = found[node_id]

    def admitted(self) -> set[str]:
        """The ids of Ray's head and of the nodes on the roll."""
        nodes = list(self._nodes.items())
        return {self.head, *(node_id for node_id, node in nodes if node.entry is not None)}

    def _take_head(self, head: Alive, info: NodeInfo) -> None:
        """Take Ray's head for the head of the roll. Raises UnfitRayError, InterruptedWaitError."""
        me, skipped = self.registry.me, reported_differences.skipped_checks(self.settings)
        named = replace(info, node="Ray's head node")
        if reason := refusal.refusal(named, me, 0.0, skipped):
            raise UnfitRayError(reason)

        def shares_storage() -> None:
            if blind := refusal.other_storage(self._proved(named), me, skipped):
                raise wait.NotYetError(blind)

        what, timeout = "the run directory of Ray's head node", STORAGE_GRACE_SECONDS
        try:
            wait.until(what, shares_storage, timeout=timeout, stop=self.stop)
        except wait.GaveUpError as error:
            raise UnfitRayError(str(error)) from None
        self.registry.me = replace(
            me,
            address=head.address,
            versions=info.versions,  # the model of its GPUs is among them
            inventory=info.inventory,
            resources=info.resources,
            warnings=(*me.warnings, *info.warnings),
            findings={**me.findings, **info.findings},
        )
        log.info("Ray's head at %s has %s", head.address, self.registry.me.has)

    def _drop(self, node: _Node) -> None:
        """Take a dead node off the roll."""
        if node.entry is not None:
            log.info("Ray has lost %s at %s", node.entry.info.node, node.alive.address)
            self.registry.poll_closed(node.entry, hung_up=True)

    def _keep(self, node: _Node) -> None:
        """Put a node that is examined on the roll; have one that has left the roll examined."""
        if node.entry is not None:
            there = self.registry.poll_opened(node.entry.info.node)
            if there is not None:
                self.registry.poll_closed(there, hung_up=False)
            if there is not node.entry:  # it was evicted, or has to join again
                node.entry = node.info = None
        elif node.refused_at and time.monotonic() - node.refused_at > AGAIN_SECONDS:
            node.refused_at = node.info = None
        elif node.info is not None and node.refused_at is None:
            self._admit(node)

    def _admit(self, node: _Node) -> None:
        """Put an examined node on the roll, or refuse it."""
        assert node.info is not None
        node.info = self._proved(node.info)
        info = replace(node.info, node=self._free_name(node))
        for joined in (False, True):
            answer = self.registry.check_in(replace(info, joined=joined), node.alive.address)
            if answer.retry_because:
                return
            if answer.refusal:
                node.refused_at = time.monotonic()
                self.observer.refused(info, answer.refusal)
                return
        # A poll that stays open: the node is present for as long as Ray lists it.
        node.entry = self.registry.poll_opened(info.node)
        self.registry.acknowledge(info.node)  # nobody there waits for the outcome
        self.observer.checked_in(replace(info, joined=True))
        for sentence in self.registry.new_differences():
            self.observer.differs(sentence)

    def _free_name(self, node: _Node) -> str:
        """The node's name; with a part of its id if another living node has it."""
        assert node.info is not None
        entries = [other.entry for other in self._nodes.values() if other is not node]
        name = node.info.node
        taken = any(entry is not None and entry.info.node == name for entry in entries)
        return f"{name[:57]}-{node.alive.id[:6]}" if taken else name

    def _proved(self, info: NodeInfo) -> NodeInfo:
        """Return it with the head's storage if the file that the node wrote is seen here.

        Then the file is removed: the program that wrote it has ended.
        """
        run_dir = self.settings.run_dir
        try:
            if not storage_proof.is_there(run_dir, info.storage):
                return info
        except OSError:
            return info
        with suppress(OSError):  # the empty file does no harm
            (run_dir / info.storage).unlink(missing_ok=True)
        return replace(info, storage=self.registry.me.storage)
