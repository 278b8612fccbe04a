"""A program that knows Ray, and nothing of Rollcall: actors on two nodes, descent with momentum.

It prints each step and saves every tenth: the weights, then the moments, then a file that says that
both are there. On SIGTERM it saves after the step that it is in. An actor that is lost ends it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.support.jobs import record

ACTORS = 2
EVERY = 10
SIZE, ROWS = 64, 32
SAVING_SECONDS = 0.2
"""Between the two files, as where they are large."""


class Shard:
    def __init__(self, number: int) -> None:
        self._number = number

    def gradient(self, weights: Any, step: int) -> tuple[Any, float]:
        """Return gradient and loss of this actor's rows of a step."""
        rows = np.random.default_rng([step, self._number]).normal(size=(ROWS, SIZE))
        error = rows @ weights - rows.sum(1)
        return 2 * rows.T @ error / ROWS, float(np.mean(error**2))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    asked: list[int] = []
    ray.init()
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    shards = actors()
    step, weights, moments = 0, np.zeros(SIZE), np.zeros(SIZE)
    if options.resume:
        weights, moments = (np.load(options.resume / name) for name in FILES)
        step = int(options.resume.name.rpartition("-")[2])
    record.write("begin", step)
    while step < options.steps:
        step += 1
        answers = ray.get([shard.gradient.remote(weights, step) for shard in shards])
        moments = 0.9 * moments + sum(gradient for gradient, _ in answers) / ACTORS
        weights = weights - 1e-3 * moments
        loss = sum(loss for _, loss in answers) / ACTORS
        record.write("step", step, value=loss)
        print(f"step {step}/{options.steps} loss {loss:.4f}", flush=True)
        if step % EVERY == 0 or asked or step == options.steps:
            save(options.out / f"checkpoint-{step}", weights, moments)
            record.write("saved", step)
        if asked:
            return 143
        record.pause()
    return 0


def actors() -> list[Any]:
    """On the nodes that do not run this program, if there are others."""
    own = ray.get_runtime_context().get_node_id()
    alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    nodes = [node for node in alive if node != own] or alive
    return [
        ray.remote(Shard)
        .options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[n % len(nodes)], soft=False),
        )
        .remote(n)
        for n in range(ACTORS)
    ]


FILES = ("weights.npy", "moments.npy")


def save(directory: Path, weights: Any, moments: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)  # half written by an earlier attempt
    np.save(directory / FILES[0], weights)
    time.sleep(SAVING_SECONDS)
    np.save(directory / FILES[1], moments)
    (directory / "done").touch()


if __name__ == "__main__":
    sys.exit(main())
