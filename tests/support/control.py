"""A head's control port for tests, and an observer that keeps what the nodes told it."""

from __future__ import annotations

from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.roll import NodeInfo
from entrypoint.cluster.server import ControlServer, RollObserver

HEAD = NodeInfo(node="head", address="127.0.0.2", versions={})


class Recorder:
    """A `RollObserver`."""

    def __init__(self) -> None:
        self.check_ins: list[tuple[str, str | None]] = []
        """Node and, if it was refused, why."""
        self.rejoins: list[str] = []
        self.differences: list[str] = []
        self.leaves: list[tuple[str, str]] = []
        self.stops: list[str] = []

    def checked_in(self, info: NodeInfo) -> None:
        self.check_ins.append((info.node, None))

    def refused(self, info: NodeInfo, reason: str) -> None:
        self.check_ins.append((info.node, reason))

    def rejoined(self, info: NodeInfo) -> None:
        self.rejoins.append(info.node)

    def differs(self, sentence: str) -> None:
        self.differences.append(sentence)

    def leaving(self, worker: str, why: str) -> None:
        self.leaves.append((worker, why))

    def stop_requested(self, why: str) -> None:
        self.stops.append(why)


def control_server(
    run_dir: Path,
    port: int,
    token: str,
    registry: NodeRegistry | None = None,
    observer: RollObserver | None = None,
) -> ControlServer:
    """By default the port of a head that waits for one worker."""
    registry = registry or NodeRegistry(HEAD, 1, "first")
    return ControlServer(registry, observer or Recorder(), RunFiles(run_dir), token, port)
