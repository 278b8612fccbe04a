"""Asks Ray's dashboard which nodes Ray has, and which version it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from contract.exit_codes import ExitCode
from entrypoint.machine.inventory import installed
from entrypoint.net.http import bearer, direct, or_not_yet
from entrypoint.processes.inbox import UnfitRayError

MOST_NODES = 10_000
"""The most nodes that Ray's dashboard returns in one answer; its default is 100."""
OF_EVERY_NODE = ("CPU", "GPU", "memory", "object_store_memory")
OWN_PREFIXES = ("node:", "accelerator_type:")
"""How Ray's own resources begin that mark one node, or a model of GPU."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A node that Ray lists as alive."""

    id: str
    name: str
    address: str
    is_head: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)
    """All that the node has offered to Ray, used or not."""

    @property
    def custom(self) -> dict[str, float]:
        """The custom resources."""
        return {
            name: amount
            for name, amount in self.resources.items()
            if name not in OF_EVERY_NODE and not name.startswith(OWN_PREFIXES)
        }


def alive_nodes(dashboard: str, token: str) -> list[Alive]:
    """Return the nodes that Ray lists as alive. Raises NotYetError if Ray does not answer."""
    alive = {"filter_keys": "state", "filter_predicates": "=", "filter_values": "ALIVE"}
    with or_not_yet("Ray's dashboard: "):
        rows = _get(dashboard, token, "/api/v0/nodes", {**alive, "limit": MOST_NODES})
        return [
            Alive(
                row["node_id"],
                row["node_name"],
                row["node_ip"],
                bool(row.get("is_head_node")),
                row.get("resources_total") or {},
            )
            for row in rows["data"]["result"]["result"]
        ]


def check_version(dashboard: str, token: str) -> None:
    """Raises UnfitRayError if this image has another Ray, NotYetError if Ray does not answer."""
    there, here = version(dashboard, token), installed("ray")
    if there != here:
        raise UnfitRayError(
            f"Ray at {dashboard} is {there}, and this image has {here or 'none'}: the nodes of Ray "
            "need the image that runs here"
        )


def version(dashboard: str, token: str) -> str:
    """Return Ray's version. Raises NotYetError if Ray does not answer.

    Raises UnfitRayError if it refuses the token.
    """
    with or_not_yet(f"no Ray dashboard answers at {dashboard}: "):
        try:
            return str(_get(dashboard, token, "/api/version", {})["ray_version"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (401, 403):
                raise
            raise UnfitRayError(_refused(dashboard, token), ExitCode.NOT_ALLOWED) from None


def _get(dashboard: str, token: str, path: str, params: Mapping[str, str | int]) -> Any:
    with httpx.Client(transport=direct(), timeout=10) as http:
        answer = http.get(f"{dashboard}{path}", params=params, headers=bearer(token))
    return answer.raise_for_status().json()


def _refused(dashboard: str, token: str) -> str:
    if token:
        return (
            f"Ray at {dashboard} refuses the token: give RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH the "
            "token of its nodes"
        )
    return (
        f"Ray at {dashboard} asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH as on its nodes"
    )
