"""The page of a run, as a browser holds it open."""

from __future__ import annotations

from contextlib import AbstractContextManager

import httpx

from tests.support.node_cluster import HEAD, Cluster


def page(cluster: Cluster) -> AbstractContextManager[httpx.Response]:
    """The run's events, as the page in a browser has them."""
    env = cluster.environment(HEAD)
    url = f"http://{env['ROLLCALL_NODE_ADDRESS']}:{env['ROLLCALL_CONTROL_PORT']}/v1/events"
    headers = {"Authorization": f"Bearer {cluster.run.token.read_text().strip()}"}
    return httpx.stream("GET", url, headers=headers, timeout=60)
