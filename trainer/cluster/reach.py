"""Which of Ray's living nodes answer: Ray's list shows a death only after its health checks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
import ray

from contract.files import fd_store
from trainer.cluster import placement
from trainer.cluster.diagnostics import declare_dead

CONNECT_SECONDS = 2.0
"""Timeout of a connection to a node's Ray. Linux repeats a lost packet after a second."""
THREADS = 64
"""Connections at a time."""
SILENT_SECONDS = 10.0
"""For which a node that has not answered is taken as silent: asked again, each look would wait."""


class Reach:
    """Which nodes this process reaches."""

    def __init__(self) -> None:
        self._silent: dict[str, float] = {}
        """Ray's id of a node → until when it is not asked again, by the monotonic clock."""

    def reached(self, nodes: Iterable[str] | None = None) -> set[str]:
        """Return the living nodes whose Ray accepts connections, all at once. None: of all."""
        living = placement.living_nodes()
        asked = [i for i in (living if nodes is None else nodes) if i in living]
        rows = {node: living[node] for node in asked if not self._is_silent(node)}
        if not rows:
            return set()
        with ThreadPoolExecutor(min(len(rows), THREADS)) as pool:
            found = dict(zip(rows, pool.map(_accepts, rows.values()), strict=True))
        until = time.monotonic() + SILENT_SECONDS
        self._silent |= {node: until for node, answers in found.items() if not answers}
        return {node for node, answers in found.items() if answers}

    def _is_silent(self, node: str) -> bool:
        return time.monotonic() < self._silent.get(node, 0.0)


def bury(node: str, why: str) -> None:
    """Have Ray count a node as dead whose work is elsewhere now, if Rollcall has started this Ray.

    What waits for the node ends at once, and its processes end as soon as it hears of it. If that
    fails, Ray's own health checks find the node later.
    """
    if fd_store.VARIABLE not in os.environ or node not in placement.living_nodes():
        return
    try:
        declare_dead.report(ray.get_runtime_context().gcs_address, node, why)
    except grpc.RpcError as error:
        print(f"Ray does not learn that {why}: {error}", flush=True)


def _accepts(row: Mapping[str, Any]) -> bool:
    address = row["NodeManagerAddress"], row["NodeManagerPort"]
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
