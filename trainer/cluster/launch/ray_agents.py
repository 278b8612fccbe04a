"""The nodes of Ray's cluster, and the agents on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contract.launch.log_lines import LONGEST_WORDS
from contract.resources import NodeResources
from trainer.cluster.launch.agent import NodeAgent
from trainer.cluster.launch.driver import NodeLostError, RankNode
from trainer.cluster.placement import work_nodes

ANSWER_SECONDS = 60.0
"""Timeout of one call to a node's agent."""
START_SECONDS = 180.0
"""Timeout of the first call: Ray starts a process, and the GPUs of an earlier attempt are freed."""


class RayAgents:
    """One actor on each node, with all its GPUs."""

    def __init__(self, nodes: Sequence[tuple[RankNode, NodeResources]]) -> None:
        self._nodes = [node for node, _ in nodes]
        self._timeout = START_SECONDS
        self._actors = [
            ray.remote(NodeAgent)
            .options(
                num_cpus=0,
                num_gpus=resources.gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote()
            for node, resources in nodes
        ]

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        pairs = zip(self._actors, arguments, strict=True)
        calls = [getattr(actor, method).remote(*given) for actor, given in pairs]
        _, pending = ray.wait(calls, num_returns=len(calls), timeout=self._timeout)
        answers = {}
        for call, node in zip(calls, self._nodes, strict=True):
            if call in pending:
                continue
            try:
                answers[call] = ray.get(call)
            except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
                raise NodeLostError(f"{node.name} is lost: {_in_one_line(error)}") from None
        if pending:
            late = (n.name for call, n in zip(calls, self._nodes, strict=True) if call in pending)
            sentence = f"{', '.join(late)} did not answer within {self._timeout:g} s"
            raise NodeLostError(sentence)
        self._timeout = ANSWER_SECONDS
        return [answers[call] for call in calls]


def _in_one_line(error: Exception) -> str:
    """Return Ray's message as one line: its later lines have the reason."""
    return " ".join(str(error).split())[:LONGEST_WORDS]


def living() -> list[tuple[RankNode, NodeResources]]:
    """Return the nodes of the cluster that work for the job, the head first."""
    found = []
    for place, (node_id, row) in enumerate(work_nodes().items()):
        name, address = row["NodeName"], row["NodeManagerAddress"]
        resources = NodeResources(name=name, gpus=int(row["Resources"].get("GPU", 0)))
        found.append((RankNode(node_id, name, address, is_head=place == 0), resources))
    return found
