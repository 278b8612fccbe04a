"""Checks that all nodes reach each other, with correct results and enough bandwidth.

Program: `python -m trainer.cluster.diagnostics.allreduce`.

One rank runs on each GPU, or on each node without GPUs. An all-reduce over all ranks uses NCCL,
RCCL or gloo, like the trainer's ranks. Its result is compared with the exact sum, its bandwidth
with `--least`. If it fails, is slow, or cannot be compared, pairs of nodes run in parallel and show
the slow or silent node or link. A rank that hangs is killed: a round waits at most `--timeout`
seconds, the start of processes and torch at most three minutes.

With `--count` the program starts before all nodes are there, and loads torch on each node that
joins. Prints one JSON row. Exits with 76 if it found a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from contract.exit_codes import ExitCode
from trainer.cluster.diagnostics import bisect
from trainer.cluster.diagnostics.allreduce_rank import AllReduceRank
from trainer.cluster.placement import job_config

POLL_SECONDS = 0.1
WARM_UP_SECONDS = 180.0
"""Seconds for all processes to start and to load torch, also from a cold disk."""


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    name: str
    gpus: int


@dataclass(slots=True)
class Crowd:
    """The ranks on the nodes of one Ray cluster. The ranks of a group that fails restart."""

    timeout: float
    """Timeout of one round, in seconds."""
    _nodes: dict[str, Node] = field(default_factory=dict)
    _ranks: dict[str, list[Any]] = field(default_factory=dict)
    _started: dict[str, list[Any]] = field(default_factory=dict)
    """Calls that each rank answers once its process has started."""

    def take(self, nodes: Iterable[Node]) -> None:
        """Start ranks on nodes that have none. Does not wait for them."""
        for node in nodes:
            self._nodes[node.name] = node
            self._of(node.name)

    def unstarted(self, names: Sequence[str], timeout: float) -> list[str]:
        """Return the nodes on which Ray has not started all processes within `timeout` seconds.

        If a process has started and died, or its node is lost, the node's ranks restart at the next
        call: that call shows whether the node answers.
        """
        import ray

        started = [answer for name in names for answer in self._started[name]]
        _, pending = ray.wait(started, num_returns=len(started), timeout=timeout)
        silent = [name for name in names if not set(pending).isdisjoint(self._started[name])]
        others = [name for name in names if name not in silent]
        self._end([name for name in others if _got(self._started[name], 0.0) is None])
        return silent

    def warm_up(self, names: Sequence[str], timeout: float) -> None:
        """Wait until all ranks have loaded torch, at most `timeout` seconds."""
        import ray

        answers = [rank.ready.remote() for name in names for rank in self._of(name)]
        ray.wait(answers, num_returns=len(answers), timeout=timeout)

    def all(self, names: Sequence[str]) -> float | None:
        """Return the bandwidth over all nodes, in GB/s; None if the all-reduce failed."""
        (speed,) = self._try([names])
        return speed

    def pairs(self, pairs: Sequence[bisect.Pair]) -> list[float | None]:
        return self._try(pairs)

    def _try(self, groups: Sequence[Sequence[str]]) -> list[float | None]:
        """Return the GB/s of each group, tried in parallel; None for a group that failed."""
        began = time.monotonic()
        ready, deadline = began + self.timeout / 2, began + self.timeout
        groups_of_ranks = [[rank for name in group for rank in self._of(name)] for group in groups]
        there = [
            {name: [rank.ready.remote() for rank in self._of(name)] for name in group}
            for group in groups
        ]
        able = [_got(list(chain(*of.values())), ready) is not None for of in there]
        meetings = [
            ranks[0].meet.remote(self.timeout) if ok else None
            for ranks, ok in zip(groups_of_ranks, able, strict=True)
        ]
        pairs = zip(groups_of_ranks, meetings, strict=True)
        asked = [self._start(ranks, at, deadline) for ranks, at in pairs]
        speeds = [_slowest(_got(answers, deadline)) for answers in asked]
        for group, of, ok, speed in zip(groups, there, able, speeds, strict=True):
            if not ok:  # keep the ranks that answer: they have loaded torch
                self._end([name for name in group if _got(of[name], 0.0) is None])
            elif speed is None:
                self._end(group)
        return speeds

    def _of(self, name: str) -> list[Any]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if name not in self._ranks:
            node = self._nodes[name]
            remote = ray.remote(AllReduceRank).options(
                num_cpus=0,
                num_gpus=1 if node.gpus else 0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            self._ranks[name] = [remote.remote() for _ in range(max(1, node.gpus))]
            self._started[name] = [rank.started.remote() for rank in self._ranks[name]]
            for rank in self._ranks[name]:
                rank.ready.remote()
        return self._ranks[name]

    def _start(self, ranks: Sequence[Any], meeting: Any, deadline: float) -> list[Any]:
        """Return the calls of one group; empty if its ranks do not meet."""
        if meeting is None or (at := _got([meeting], deadline)) is None:
            return []
        left = max(0.1, deadline - time.monotonic())
        return [
            rank.all_reduce.remote(tuple(at[0]), index, len(ranks), left)
            for index, rank in enumerate(ranks)
        ]

    def _end(self, group: Sequence[str]) -> None:
        import ray

        for name in group:
            for rank in self._ranks.pop(name, ()):
                ray.kill(rank)


def _got(answers: Sequence[Any], deadline: float) -> list[Any] | None:
    """Return all answers; None if one fails or is late."""
    import ray

    try:
        return list(ray.get(list(answers), timeout=max(0.1, deadline - time.monotonic())))
    except (ray.exceptions.RayError, TimeoutError):
        return None


def _slowest(speeds: Sequence[float | None] | None) -> float | None:
    return (
        None
        if not speeds or None in speeds
        else min(speed for speed in speeds if speed is not None)
    )


def examine(
    crowd: Crowd, names: Sequence[str], least: float, patience: float = WARM_UP_SECONDS
) -> dict[str, Any]:
    """Return the bandwidth of all nodes together, and the faults that pairs of nodes show.

    If Ray does not start the ranks of a node within `patience` seconds, that is the only fault."""
    began = time.monotonic()
    if silent := crowd.unstarted(names, patience):
        return _row(names, None, least, bisect.without_ray(silent, patience), began)
    crowd.warm_up(names, max(0.0, began + patience - time.monotonic()))
    began = time.monotonic()
    together = crowd.all(names)
    if together is None or together < least:
        together = max(filter(None, (together, crowd.all(names))), default=None)
    enough = together is not None and together >= least
    # Two nodes are one pair. A bandwidth above `least` needs no comparison.
    compared = enough and (least > 0 or len(names) == 2)
    faults = [] if compared else bisect.find(names, crowd.pairs, least=least)
    return _row(names, together, least, faults, began)


def _row(
    names: Sequence[str],
    together: float | None,
    least: float,
    faults: Sequence[bisect.LinkFault],
    began: float,
) -> dict[str, Any]:
    enough = together is not None and together >= least
    return {
        "verdict": "pass" if enough and not faults else "fail",
        "nodes": list(names),
        "gbs": together and round(together, 4),
        "least_gbs": least,
        "faults": [asdict(fault) for fault in faults],
        "seconds": round(time.monotonic() - began, 2),
    }


def alive() -> dict[str, Node]:
    import ray

    return {
        row["NodeName"]: Node(row["NodeID"], row["NodeName"], int(row["Resources"].get("GPU", 0)))
        for row in ray.nodes()
        if row["Alive"]
    }


def gather(crowd: Crowd, names: Sequence[str], count: int, deadline: float) -> list[str]:
    """Wait for the named nodes, or for `count` nodes. Returns the names of the nodes to check.

    If any node has GPUs, only nodes with GPUs are checked. Raises TimeoutError.
    """
    while True:
        here = alive()
        wanted = [name for name in here if not names or name in names]
        crowd.take(here[name] for name in wanted)
        if len(wanted) >= max(count, len(names)):
            return sorted([name for name in wanted if here[name].gpus] or wanted)
        if time.monotonic() > deadline:
            raise TimeoutError(f"Ray shows only {', '.join(sorted(here))}")
        time.sleep(POLL_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", help="of Ray's head; else that of the job it runs in")
    parser.add_argument("--nodes", type=lambda text: text.split(","), default=[])
    parser.add_argument("--count", type=int, default=1, help="nodes to wait for")
    parser.add_argument("--within", type=float, default=60.0, help="seconds to wait for them")
    parser.add_argument("--least", type=float, default=0.0, help="GB/s below which it is a fault")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of one round")
    parser.add_argument(
        "--patience", type=float, default=WARM_UP_SECONDS, help="seconds for processes and torch"
    )
    options = parser.parse_args()
    import ray

    quiet = {"log_to_driver": False, "logging_level": "WARNING"}
    ray.init(options.address, job_config=job_config(), **quiet)
    crowd = Crowd(options.timeout)
    names = gather(crowd, options.nodes, options.count, time.monotonic() + options.within)
    row = examine(crowd, names, options.least, options.patience)
    print(json.dumps(row), flush=True)
    for fault in row["faults"]:
        print(fault["sentence"], file=sys.stderr)
    return ExitCode.FINISHED if row["verdict"] == "pass" else ExitCode.UNFIT


if __name__ == "__main__":
    sys.exit(main())
