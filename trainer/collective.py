"""`python -m trainer.collective`: do all nodes reach each other, right and fast enough?

One rank on each GPU, or on each node where there is none: an all-reduce over all of them with NCCL,
RCCL or gloo through Ray, its result compared with the exact sum and its time with `--least`. Then
pairs of nodes, all at once, which name the node or the link that is slow or silent. A rank that
hangs is ended with its process: nothing here waits longer than `--timeout` a round.

Prints one JSON row; ends with 76 where a fault was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer import suspects
from trainer.contract import ExitCode

ROUNDS = 10
"""Timed all-reduces after one that opens the connections; the fastest counts."""


class Rank:
    """One process of a group, on the node that Ray has put it on."""

    def meeting_point(self) -> str:
        """An address and a free port on this node, where a group can meet, once it can begin."""
        import socket

        import ray
        import torch.distributed  # noqa: F401 - takes seconds, which no round is to be charged with

        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return f"tcp://{ray.util.get_node_ip_address()}:{port}"

    def all_reduce(
        self, meeting: str, rank: int, world: int, size: int, timeout: float
    ) -> float | None:
        """GB/s of bus bandwidth over `size` bytes; None where the sum is wrong."""
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        on_gpu = torch.cuda.is_available()
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=meeting,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
        )
        try:
            device = torch.device("cuda" if on_gpu else "cpu")
            fastest = float("inf")
            for _ in range(1 + ROUNDS):
                values = torch.full((size // 4,), float(rank + 1), device=device)
                began = time.perf_counter()
                dist.all_reduce(values)
                if on_gpu:
                    torch.cuda.synchronize()
                fastest = min(fastest, time.perf_counter() - began)
                if not bool((values == world * (world + 1) / 2).all()):
                    return None
            # As nccl-tests counts it: what each link carries in a ring.
            return 2 * (world - 1) / world * size / fastest / 1e9
        finally:
            dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    name: str
    gpus: int


class Crowd:
    """Ranks on nodes of one Ray cluster, started anew for every round."""

    def __init__(self, nodes: Sequence[Node], *, size: int, timeout: float) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._size = size
        self._timeout = timeout

    def all(self) -> float | None:
        """GB/s over all nodes."""
        (speed,) = self._try([list(self._nodes.values())])
        return speed

    def pairs(self, pairs: Sequence[suspects.Pair]) -> list[float | None]:
        return self._try([[self._nodes[name] for name in pair] for pair in pairs])

    def _try(self, groups: Sequence[Sequence[Node]]) -> list[float | None]:
        """GB/s of each group, all at the same time; None where one failed, or gave no answer."""
        import ray

        crews = [[rank for node in group for rank in self._ranks(node)] for group in groups]
        deadline = time.monotonic() + self._timeout
        try:
            points = [[rank.meeting_point.remote() for rank in crew] for crew in crews]
            meetings = [_first(several, deadline) for several in points]
            asked = [self._start(c, m, deadline) for c, m in zip(crews, meetings, strict=True)]
            return [_slowest(answers, deadline) for answers in asked]
        finally:
            for rank in (rank for crew in crews for rank in crew):
                ray.kill(rank)

    def _ranks(self, node: Node) -> list[Any]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = ray.remote(Rank).options(
            num_cpus=0,
            num_gpus=1 if node.gpus else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        return [remote.remote() for _ in range(max(1, node.gpus))]

    def _start(self, crew: Sequence[Any], meeting: str | None, deadline: float) -> list[Any]:
        """The answers of one group, to come; none where it does not meet."""
        if meeting is None:
            return []
        left, world = max(0.1, deadline - time.monotonic()), len(crew)
        return [
            rank.all_reduce.remote(meeting, number, world, self._size, left)
            for number, rank in enumerate(crew)
        ]


def _first(points: Sequence[Any], deadline: float) -> str | None:
    """Where a group meets, once all of it is there; None where one does not answer."""
    import ray

    try:
        there = ray.get(list(points), timeout=max(0.1, deadline - time.monotonic()))
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return str(there[0])


def _slowest(answers: Sequence[Any], deadline: float) -> float | None:
    import ray

    try:
        speeds = ray.get(list(answers), timeout=max(0.1, deadline - time.monotonic()))
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return None if not speeds or None in speeds else float(min(speeds))


def examine(crowd: Crowd, names: Sequence[str], least: float) -> dict[str, Any]:
    """What all reach together, and the faults that pairs of them show."""
    together = crowd.all()
    faults = suspects.find(names, crowd.pairs, least=least)
    unfit = together is None or together < least or bool(faults)
    return {
        "verdict": "fail" if unfit else "pass",
        "nodes": list(names),
        "gbs": together and round(together, 3),
        "least_gbs": least,
        "faults": [asdict(fault) for fault in faults],
    }


def alive() -> list[Node]:
    import ray

    return [
        Node(row["NodeID"], row["NodeName"], int(row["Resources"].get("GPU", 0)))
        for row in ray.nodes()
        if row["Alive"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=16, help="of the message")
    parser.add_argument("--least", type=float, default=0.0, help="GB/s below which it is a fault")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of one round")
    options = parser.parse_args()
    import ray

    ray.init(log_to_driver=False, logging_level="WARNING")
    nodes = sorted(alive(), key=lambda node: node.name)
    crowd = Crowd(nodes, size=options.mib << 20, timeout=options.timeout)
    row = examine(crowd, [node.name for node in nodes], options.least)
    print(json.dumps(row), flush=True)
    for fault in row["faults"]:
        print(fault["sentence"], file=sys.stderr)
    return ExitCode.FINISHED if row["verdict"] == "pass" else ExitCode.UNFIT


if __name__ == "__main__":
    sys.exit(main())
