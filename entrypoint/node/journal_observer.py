"""Writes to the journal what the nodes tell the head, and wakes the head if it has to act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from entrypoint.cluster.earlier_nodes import CHECK_IN
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.processes.inbox import Inbox, StopAsked, WorkerLeaves
from entrypoint.run.journal import Journal


class Ray(Protocol):
    """What the observer asks of the head's Ray."""

    def mark_dead(self, name: str, why: str) -> bool:
        """Have Ray mark its nodes of this name dead. Returns whether there were any."""
        ...


@dataclass(frozen=True, slots=True)
class JournalObserver:
    """A `RollObserver` of the head's control port."""

    journal: Journal
    inbox: Inbox
    ray: Ray

    def checked_in(self, info: NodeInfo) -> None:
        verb = "has joined Ray" if info.joined else "checked in"
        sentence = f"{info.node} at {info.address} {verb} ({info.has})"
        about = {"node": info.node, "address": info.address, "rank": info.rank}
        self.journal.record(CHECK_IN, sentence, **about)

    def refused(self, info: NodeInfo, reason: str) -> None:
        sentence = f"refused {info.node} at {info.address}: {reason}"
        self.journal.record("refused", sentence, node=info.node)

    def rejoined(self, info: NodeInfo) -> None:
        """Have Ray mark the node dead: its entrypoint ended its Ray before it checked in again."""
        why = f" ({info.rejoins})" if info.rejoins else ""
        over = f"{info.node} asks to join again{why}: its earlier processes have ended"
        marked = "; Ray knows it" if self.ray.mark_dead(info.node, over) else ""
        if marked or info.rejoins:
            self.journal.record("node-over", f"{over}{marked}", node=info.node)

    def differs(self, sentence: str) -> None:
        self.journal.record("difference", sentence)

    def token_changes(self) -> None:
        self.journal.record("token", "the run's token is changed (rollcall rotate-token)")

    def token_changed(self, told: Sequence[str], not_told: Sequence[str]) -> None:
        have = f"{', '.join(told) or 'no worker'} has the new token"
        lack = f"; {', '.join(not_told)} did not ask for it in time" if not_told else ""
        self.journal.record("token", f"{have}{lack}", told=list(told), not_told=list(not_told))

    def leaving(self, worker: str, why: str) -> None:
        self.inbox.put(WorkerLeaves(worker, why))

    def stop_requested(self, why: str) -> None:
        self.inbox.put(StopAsked(why, by_person=True))
