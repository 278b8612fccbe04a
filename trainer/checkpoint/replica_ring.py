"""The replica stores of a run: one on each node, in a ring. Each shard goes to two neighbours.

The stores are detached actors, found by a namespace that only this run has.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.files.child_variables import ATTEMPT
from contract.run_dir import write_atomically
from trainer.checkpoint.memory_shards import ShardManifest
from trainer.checkpoint.protocol import StoreName
from trainer.checkpoint.replica_store import ReplicaStore
from trainer.cluster.host_memory import SNAPSHOT_SHARE
from trainer.cluster.tcp_stream import StreamSource
from trainer.config.config import Config

MARK = re.compile(rb"[0-9a-f]{32}")

PREFIX = "holder-"
"""Of a store's name in Ray; Ray's id of its node follows."""
RECEIVE = "receive"
"""The concurrency group in which stores receive: they answer other requests meanwhile."""
RECEIVERS = 16
"""Shards that a store receives at a time. One from an unreachable node takes a place until
`trainer.cluster.tcp_stream` times out."""
END_SECONDS = 5.0
"""Seconds for all stores to delete what they hold."""
PATIENCE_SECONDS = 120.0
"""Seconds for one answer of a store, which gives up a silent stream after half of that."""


def build(
    namespace: str, nodes: Iterable[Mapping[str, Any]], memory: float | None, *, goes_on: bool
) -> dict[StoreName, Any]:
    """Start a store on each of these nodes, which are Ray's rows. Return their handles in order.

    `memory`: GB that each may hold, if given. `goes_on`: a new store begins with what an earlier
    Ray left on its node.
    """
    ordered = sorted(nodes, key=lambda row: (row["NodeName"], row["NodeID"]))
    names = [StoreName(namespace, row["NodeID"]) for row in ordered]
    budgets = [_budget(row, memory) for row in ordered]
    return {
        name: _start(name, budget, goes_on) for name, budget in zip(names, budgets, strict=True)
    }


def release(namespace: str) -> None:
    """Delete all stores of the run, whoever started them, and what they hold."""
    found = list(living(namespace).values())
    if found:
        cleared = [store.clear.remote() for store in found]
        ray.wait(cleared, num_returns=len(found), timeout=END_SECONDS)
    for store in found:
        ray.kill(store)


def namespace_of(config: Config) -> str:
    """Return the namespace of the run's stores, one for each run directory. Raises OSError."""
    file = config.files.peers
    mark = file.read_bytes() if file.exists() else b""
    if not MARK.fullmatch(mark):
        if mark:
            print(f"{file} is damaged: the nodes' snapshots cannot be found.", flush=True)
        mark = uuid.uuid4().hex.encode()
        write_atomically(file, mark.decode())
    return f"peers-{hashlib.sha256(str(file).encode() + mark).hexdigest()[:16]}"


def living(namespace: str) -> dict[StoreName, Any]:
    """Return the handle of each living store of the run."""
    found = {}
    for row in ray.util.list_named_actors(all_namespaces=True):
        if row["namespace"] == namespace:
            name = StoreName(namespace, row["name"].removeprefix(PREFIX))
            try:
                found[name] = handle(name)
            except ValueError:  # it has died since
                continue
    return found


def handle(name: StoreName) -> Any:
    """Return a living store. Raises ValueError if it has died."""
    return ray.get_actor(f"{PREFIX}{name.node}", name.namespace)


def neighbours(ring: Sequence[StoreName], node: str) -> tuple[StoreName | None, StoreName]:
    """Return the store of the node itself, if there is one, and that of the next node."""
    nodes = [name.node for name in ring]
    if node not in nodes:
        return None, ring[0]
    place = nodes.index(node)
    return ring[place], ring[(place + 1) % len(ring)]


def receive(store: Any, manifest: ShardManifest, source: StreamSource) -> Any:
    """Call `ReplicaStore.receive`; other requests do not wait for it. Returns Ray's reference."""
    return store.receive.options(concurrency_group=RECEIVE).remote(manifest, source)


def answer(reference: Any) -> Any:
    """Return the answer. Raises RayError if there is none, and what the store raised."""
    try:
        return ray.get(reference, timeout=PATIENCE_SECONDS)
    except RayTaskError as error:
        raise error.cause from None


def answers(references: Iterable[Any]) -> list[Any]:
    return [answer(reference) for reference in list(references)]


def _budget(row: Mapping[str, Any], memory: float | None) -> float:
    """Return the budget of a node's store in bytes."""
    if memory is not None:
        return memory * 1e9
    return SNAPSHOT_SHARE * float(row["Resources"].get("memory", 0.0))


def _start(name: StoreName, budget: float, goes_on: bool) -> Any:
    """Return the store of a node: the existing one, or a new one."""
    options: dict[str, Any] = {
        "name": f"{PREFIX}{name.node}",
        "namespace": name.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(name.node, soft=False),
        # It does not belong to the attempt: ending the attempt's processes must not end it.
        "runtime_env": {"env_vars": {ATTEMPT: ""}},
    }
    actor = ray.remote(concurrency_groups={RECEIVE: RECEIVERS})(ReplicaStore)
    store = actor.options(**options).remote(budget, name.namespace, goes_on=goes_on)
    store.set_budget.remote(budget)
    return store
