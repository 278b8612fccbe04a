"""Standby ranks: processes with a rank's imports and without a model, on the nodes of a run.

Each node holds as many as the fullest node has ranks, within its limit: the ranks of a lost node
may move there. They are idle workers of Ray. A node's raylet starts them when it is asked to
(`PrestartWorkers`), for no job, and gives them to the next actors with the same runtime
environment, also those of a later job. So a lost rank, and the ranks of the next attempt, import
nothing when they start. The number that is left on a node is a value of Ray's key-value store,
which the driver of the next attempt reads. It ends with the head's Ray, and a node that starts
again has another id.

The other actors of an attempt have no runtime environment: the supervisor of Ray's job on the head,
and a replica store on each node. As many plain workers are started for those of the next attempt.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import grpc  # type: ignore[import-untyped]
from ray.exceptions import RayError

from contract.launch.standby_ranks import LABEL, VARIABLE
from trainer.cluster import placement

ENVIRONMENT = {"env_vars": {VARIABLE: "1"}}
SETTLED_STEPS = 3
"""Finished since a rank was started, before others are started to stand by: they take CPU time."""
KEPT_SECONDS = 10 * 365 * 86400
"""After which Ray may end a process that nobody has taken."""
START_SECONDS = 5.0
"""Between two starts on a node: they leave the CPUs to the run. A request of several, or one that
comes before the process before it has registered, may be answered with that one."""
SETUP_SECONDS = 600
"""Ray's own timeout of a runtime environment."""
ANSWER_SECONDS = 5.0
"""Timeout of a request to a node's raylet."""


class StandbyRanks:
    """The standby ranks of all nodes, as this driver takes and replaces them."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int], str] = {}
        """Role and number of a process → Ray's id of its node."""
        self._steps = 0
        """Finished since a process was started."""
        self._plain: Counter[str] = Counter()
        """Ray's id of a node → plain workers that were started for the next attempt."""
        self._counts = threading.Lock()
        self._filling = threading.Lock()

    def take(self, role: str, number: int, node: str) -> Mapping[str, Any]:
        """Return Ray's options with which a process that starts on a node gets a standby rank.

        Without one left there, they are {}: Ray then gives it any idle worker, or a new one.
        """
        self._nodes[role, number] = node
        self._steps = 0
        with self._counts:
            left = _left(node)
            if left:
                _set_left(node, left - 1)
        return {"runtime_env": ENVIRONMENT} if left else {}

    def step_finished(self) -> None:
        """Ask for what is missing on the nodes, in a thread, once the run has settled."""
        self._steps += 1
        if self._nodes and self._steps == SETTLED_STEPS:
            threading.Thread(target=self._fill, name="standby-ranks", daemon=True).start()

    def _fill(self) -> None:
        """Ask for one on each node at a time, until enough are there or a rank is started."""
        with self._filling, suppress(RayError):  # Ray may end meanwhile
            answers = set(placement.living_nodes())
            while answers and self._steps >= SETTLED_STEPS:
                rows = placement.living_nodes()
                answers = {node for node in answers & rows.keys() if self._asked(rows[node])}
                time.sleep(START_SECONDS)

    def _asked(self, row: Mapping[str, Any]) -> bool:
        """Ask for a process on the node unless enough are there. Returns whether it did."""
        node, limit = row["NodeID"], int(row["Labels"].get(LABEL, 0))
        ranks = Counter(list(self._nodes.values()))
        may_have_ranks = node in ranks or not placement.leads(row)
        if may_have_ranks and _left(node) < min(max(ranks.values()), limit):
            if not _ask(row, ENVIRONMENT):
                return False
            with self._counts:
                _set_left(node, _left(node) + 1)
            return True
        plain = 1 + placement.leads(row) if limit else 0
        if self._plain[node] >= plain or not _ask(row, {}):
            return False
        self._plain[node] += 1
        return True


def _ask(row: Mapping[str, Any], environment: Mapping[str, Any]) -> bool:
    """Ask a node's raylet to start an idle worker. Returns whether it has agreed."""
    # Ray's Python API has no such call.
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc
    from ray.runtime_env import RuntimeEnv

    request: Any = node_manager_pb2.PrestartWorkersRequest(
        keep_alive_duration_secs=KEPT_SECONDS,
        num_workers=1,
        runtime_env_info={
            "serialized_runtime_env": RuntimeEnv(**environment).serialize(),
            "runtime_env_config": {"setup_timeout_seconds": SETUP_SECONDS, "eager_install": True},
        },
    )
    address = f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}"
    try:
        with init_grpc_channel(address) as channel:
            raylet = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
            raylet.PrestartWorkers(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        print(f"No standby ranks on {row['NodeName']}: {error.details()}.", flush=True)
        return False
    return True


def _left(node: str) -> int:
    return int(_store()._internal_kv_get(_key(node)) or 0)


def _set_left(node: str, count: int) -> None:
    _store()._internal_kv_put(_key(node), str(count))


def _key(node: str) -> str:
    return f"rollcall-standby-ranks-{node}"


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv
