"""A job for a debugger: a task on the worker's node that stops at a breakpoint, or that fails."""

from __future__ import annotations

import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WORKER = "worker-1"


@ray.remote(max_retries=0)  # type: ignore[untyped-decorator] # Ray gives no types
def stops(number: int) -> int:
    answer = number * 7
    breakpoint()
    return answer + 1


@ray.remote(max_retries=0)  # type: ignore[untyped-decorator] # Ray gives no types
def fails(number: int) -> int:
    answer = number * 7
    raise ValueError(f"{answer} is a mistake")


def main() -> int:
    ray.init(address="auto")
    (node,) = (one["NodeID"] for one in ray.nodes() if one["NodeName"] == WORKER)
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = {"stops": stops, "fails": fails}[sys.argv[1]]
    print("the task says", ray.get(task.options(scheduling_strategy=there).remote(6)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
