"""What the control port reports to the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from entrypoint.cluster.node_info import NodeInfo


class RollObserver(Protocol):
    """Learns what the nodes tell the head. All but the last two may block."""

    def checked_in(self, info: NodeInfo) -> None:
        """A node has checked in, or has joined Ray."""
        ...

    def refused(self, info: NodeInfo, reason: str) -> None: ...

    def rejoined(self, info: NodeInfo) -> None:
        """A node that had joined checks in again: what ran on it is over."""
        ...

    def differs(self, sentence: str) -> None:
        """The nodes differ from one another, in what `sentence` says."""
        ...

    def token_changes(self) -> None:
        """The run's token is about to change. Raises SupersededError and OSError."""
        ...

    def token_changed(self, told: Sequence[str], not_told: Sequence[str]) -> None:
        """These workers have the new token, and these had it not in time."""
        ...

    def leaving(self, worker: str, why: str) -> None:
        """A worker's machine is about to be taken away."""
        ...

    def stop_requested(self, why: str) -> None: ...
