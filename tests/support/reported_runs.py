"""Run directories as runs leave them, for `rollcall report`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.run_dir import RunFiles
from tests.support.flight_events import Clock


def written(root: Path, clock: Clock, *, recipe: str = "", model: str = "") -> RunFiles:
    """A run directory with these events."""
    run = RunFiles(root)
    root.mkdir(parents=True, exist_ok=True)
    run.journal.write_text("".join(f"{json.dumps(row)}\n" for row in clock.rows))
    if recipe:
        row = {"run_id": "a1", "recipe": recipe, "model": model.rpartition("/")[2]}
        run.run.write_text(json.dumps({**row, "created": clock.rows[0]["at"]}))
    return run


def with_faults(root: Path) -> RunFiles:
    """A run of 60 steps whose driver died, whose node was lost, and whose engine was replaced."""
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    clock.steps(1, *range(1, 21), seconds=60)
    clock.then(2, "checkpoint", 1, step=20)
    clock.steps(1, 21, 22, seconds=60)
    clock.then(8, "failure", 1, failure="node_lost", silent_seconds=8.0)
    clock.rows[-1]["sentence"] = "node_lost: worker-1 has been silent for 8 s"
    clock.then(0, "decision", 1, answer="resume")
    clock.rows[-1]["sentence"] = "a node was lost: resuming from step 20"
    clock.begins(2, from_step=20)
    clock.steps(2, *range(21, 41), seconds=60)
    clock.then(1, "engine-replaced", 2)
    clock.rows[-1]["sentence"] = "engine 1 is there again"
    clock.steps(2, *range(41, 61), seconds=60)
    clock.then(30, "outcome", outcome="finished", exit_code=0)
    clock.rows[-1]["sentence"] = "the job has finished"
    run = written(root, clock, recipe="builtin", model="/models/tiny-7b")
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in learns(60)))
    return run


def learns(steps: int) -> list[dict[str, Any]]:
    """Metrics of a run that learns."""
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        done = 1 - math.exp(-3 * step / steps)
        noise = 0.03 * math.sin(step * 7.0)
        row = {
            "step": step,
            "train/reward": 0.3 + 0.5 * done + noise,
            "train/acc": 0.2 + 0.6 * done,
        }
        row |= {"train/kl": 0.02 * done, "train/entropy": 2 - 1.2 * done, "timing/step": 58.0}
        row |= {"timing/generate": 24.0, "timing/reward": 5.0, "timing/forward": 8.0}
        row |= {"timing/update": 18.0, "timing/publish": 3.0, "perf/tokens_per_second": 9000.0}
        rows.append(row)
        if step % 10 == 0:
            rows.append({"step": step, "eval/accuracy": 0.4 + 0.5 * done, "eval/truncated": 0.1})
    return rows


def tells_loss(root: Path) -> RunFiles:
    """A stage on all ranks, whose steps are in the journal alone."""
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    for step in range(10, 101, 10):
        clock.then(30, "step", 1, step=step, steps=10, loss=3 * math.exp(-step / 60))
    clock.then(4, "eval", 1, step=100, accuracy=0.75)
    clock.then(9, "outcome", outcome="finished", exit_code=0)
    clock.rows[-1]["sentence"] = "the job has finished"
    return written(root, clock, recipe="supervised", model="/models/tiny-7b")


def tells_nothing(root: Path) -> RunFiles:
    """A program that tells no steps."""
    clock = Clock()
    clock.then(0, "start")
    clock.then(5, "roll", present=[], expected=0)
    clock.then(1, "attempt", 1, resume_from=0)
    clock.then(3600, "outcome", outcome="finished", exit_code=0)
    return written(root, clock, recipe="command", model="")


def entered(cluster: Path, job: str, **row: Any) -> Path:
    """Put a job into a cluster's queue; return its run directory."""
    root = RunFiles(cluster).jobs / job
    root.mkdir(parents=True)
    entry: Mapping[str, Any] = {"id": job, "words": ["x"], "runtime_env": {}, "sentence": "", **row}
    (root / "job.json").write_text(json.dumps(entry))
    return root


def cluster(root: Path) -> RunFiles:
    """A cluster on which a job ran, and a pipeline whose last stage did not begin."""
    clock = Clock()
    clock.then(0, "start")
    run = written(root, clock)
    over = {"state": "finished", "ended": "2026-01-01T01:00:00+00:00"}
    tells_nothing(entered(root, "job-1", **over))
    tells_loss(entered(root, "job-2", stage="sft", **over))
    tells_loss(entered(root, "job-3", stage="rm", after="job-2", **over))
    with_faults(entered(root, "job-4", stage="ppo", after="job-3", **over))
    why = "it did not begin: the disk is full"
    entered(root, "job-5", stage="eval", after="job-4", **over | {"state": "failed"}, sentence=why)
    return run
