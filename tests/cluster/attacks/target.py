"""The head that is attacked."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import psutil

from tests.support.node_cluster import HEAD, Cluster

MOST_MEMORY = 30 * 2**20
"""Bytes that an attack may cost the head: its memory also changes by itself."""


class Head:
    """A head that trains, as an attacker on its machine reaches it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        env = cluster.environment(HEAD)
        self.address = env["ROLLCALL_HEAD_ADDRESS"]
        self.port = int(env["ROLLCALL_CONTROL_PORT"])
        self.dashboard = int(env["ROLLCALL_DASHBOARD_PORT"])
        self.token = cluster.run.token.read_text().strip()
        self.process = psutil.Process(cluster.nodes[HEAD].pid)

    @property
    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    def get(self, path: str, *, port: int = 0, token: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"http://{self.address}:{port or self.port}{path}"
        return httpx.get(url, headers=headers, timeout=5, trust_env=False)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.address, self.port), timeout=5)

    def grown(self, before: int, what: str) -> Iterator[str]:
        """Whether `what` has cost the head memory; to be asked while its connection is open."""
        if (more := self.memory - before) > MOST_MEMORY:
            yield f"{what}: the head has {more / 2**20:.0f} MiB more"

    def unwell(self) -> Iterator[str]:
        """What a token holder finds wrong with the head."""
        try:
            state = self.get("/v1/state", token=self.token)
            state.raise_for_status()
            if not all(node["present"] for node in state.json()["nodes"]):
                yield "a worker is not present"
            self.get("/metrics", token=self.token).raise_for_status()
        except (httpx.HTTPError, ValueError) as error:
            yield f"the head does not serve its own: {error!r}"
