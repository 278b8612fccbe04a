"""The holders of a run: one on each node, in a ring, where each share goes to two neighbours.

They are detached actors, which are found by a name that only this run has.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.run_dir import write_atomically
from trainer.checkpoint.replica_store import Holder
from trainer.checkpoint.shard_manifest import Sheet
from trainer.cluster.tcp_stream import StreamSource
from trainer.config.config import Config

MARK = re.compile(rb"[0-9a-f]{32}")
Ring = tuple[tuple[str, Any], ...]
"""Ray's id of each node with its holder."""

RECEIVE = "receive"
"""The concurrency group in which holders receive: they answer beside it."""
RECEIVERS = 16
"""Shares that come to a holder at a time. One of a node that was cut off has a place for as long as
`trainer.cluster.tcp_stream` is patient."""
SHARE_OF_MEMORY = 0.5
"""Of what Ray counts as a node's memory: the budget where no flag gives one."""
END_SECONDS = 5.0
"""For all holders to let go of what they hold."""
PATIENCE_SECONDS = 120.0
"""For one answer of a holder, which gives up a silent stream after half of it."""


def build(
    namespace: str, nodes: Iterable[Mapping[str, Any]], memory: float | None, *, goes_on: bool
) -> Ring:
    """A holder on each of these nodes, Ray's rows; `memory`: GB that each may hold, if given.

    `goes_on`: new ones begin with what a Ray before this one has left on their node.
    """
    ordered = sorted(nodes, key=lambda row: (row["NodeName"], row["NodeID"]))
    return tuple(
        (row["NodeID"], _start(namespace, row["NodeID"], _budget(row, memory), goes_on))
        for row in ordered
    )


def release(namespace: str) -> None:
    """Let all holders of the run go, whoever started them, and what they hold."""
    found = list(holders(namespace).values())
    if found:
        letting_go = [holder.let_go.remote() for holder in found]
        ray.wait(letting_go, num_returns=len(found), timeout=END_SECONDS)
    for holder in found:
        ray.kill(holder)


def namespace_of(config: Config) -> str:
    """Of this run's holders: a run directory that was made anew has others.

    Raises OSError.
    """
    file = config.files.peers
    mark = file.read_bytes() if file.exists() else b""
    if not MARK.fullmatch(mark):
        if mark:
            print(f"{file} is damaged: what the nodes hold in memory is not found.", flush=True)
        mark = uuid.uuid4().hex.encode()
        write_atomically(file, mark.decode())
    return f"peers-{hashlib.sha256(str(file).encode() + mark).hexdigest()[:16]}"


def holders(namespace: str) -> dict[str, Any]:
    """Name → each living holder of the run."""
    found = {}
    for row in ray.util.list_named_actors(all_namespaces=True):
        if row["namespace"] == namespace:
            try:
                found[row["name"]] = ray.get_actor(row["name"], namespace)
            except ValueError:  # it has died since
                continue
    return found


def neighbours(ring: Ring, node: str) -> tuple[Any | None, Any]:
    """The holder of the node itself, if it has one, and that of the next."""
    names = [name for name, _ in ring]
    if node not in names:
        return None, ring[0][1]
    place = names.index(node)
    return ring[place][1], ring[(place + 1) % len(ring)][1]


def receive(holder: Any, sheet: Sheet, source: StreamSource) -> Any:
    """A reference to what comes of `Holder.receive`, which other requests do not wait for."""
    return holder.receive.options(concurrency_group=RECEIVE).remote(sheet, source)


def answer(reference: Any) -> Any:
    """Raises RayError where there is none, and what the holder raised."""
    try:
        return ray.get(reference, timeout=PATIENCE_SECONDS)
    except RayTaskError as error:
        raise error.cause from None


def answers(references: Iterable[Any]) -> list[Any]:
    return [answer(reference) for reference in list(references)]


def _budget(row: Mapping[str, Any], memory: float | None) -> float:
    """Bytes."""
    if memory is not None:
        return memory * 1e9
    return SHARE_OF_MEMORY * float(row["Resources"].get("memory", 0.0))


def _start(namespace: str, node: str, budget: float, goes_on: bool) -> Any:
    """The holder on a node: the one that is there, or a new one."""
    options: dict[str, Any] = {
        "name": f"holder-{node}",
        "namespace": namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        # It is none of the attempt's processes: whoever ends those must not end it.
        "runtime_env": {"env_vars": {"ROLLCALL_ATTEMPT": ""}},
    }
    actor = ray.remote(concurrency_groups={RECEIVE: RECEIVERS})(Holder)
    holder = actor.options(**options).remote(budget, namespace, goes_on=goes_on)
    holder.allow.remote(budget)
    return holder
