"""What has become worse on the nodes since this head started, or since their last checks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from entrypoint.preflight.changes import Change, HealthKind


@dataclass(frozen=True, slots=True)
class NodeChange:
    node: str
    change: Change

    @property
    def sentence(self) -> str:
        return f"{self.node}: {self.change.part}: {self.change.evidence}"

    def as_dict(self) -> dict[str, Any]:
        change = self.change
        told = {"node": self.node, "kind": change.kind, "part": change.part}
        return {**told, "evidence": change.evidence}


@dataclass(slots=True)
class Health:
    """Every method may be called from any thread."""

    _known: dict[tuple[str, HealthKind, str], NodeChange] = field(default_factory=dict)
    """The first change of each node, kind and part."""
    _untold: list[NodeChange] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, node: str, changes: Sequence[Change]) -> None:
        with self._lock:
            for change in changes:
                key = node, change.kind, change.part
                if key not in self._known:
                    self._known[key] = NodeChange(node, change)
                    self._untold.append(self._known[key])

    def forget(self, node: str) -> None:
        """The node has passed its checks again: what was worse before is over, or told anew."""
        with self._lock:
            self._known = {key: one for key, one in self._known.items() if one.node != node}

    def take(self) -> list[NodeChange]:
        """Return the changes that are new since the last call."""
        with self._lock:
            new, self._untold = self._untold, []
            return new

    def known(self, node: str | None = None) -> list[NodeChange]:
        """Return all changes, or those of a node."""
        with self._lock:
            return [one for one in self._known.values() if node in (None, one.node)]
