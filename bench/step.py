"""Steady-state step time of the builtin GRPO against a hand-written floor and against TRL's.

One model of a million parameters, 32 prompts x 8 completions, float32, both cores for every side.
*Uniform*: every completion has 32 tokens; the floor is a bare generate, forward, backward, AdamW.
*Ragged*: a quarter of the limit of 128 in the mean, some at the limit. The builtin trainer runs as
in a job: its own processes, Ray actors, metrics. Sides take turns; ratios are of medians of steady
steps in one round, and the median of the rounds is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import task as shared
from bench.sides.task import Kind, Task

STEPS, WARM = 8, 3
FLOOR_TARGET, TRL_TARGET = 1.05, 2.0
THREADS = str(os.cpu_count() or 1)
Row = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="rc-step-") as directory:
        root = Path(directory)
        uniform = [round_of(root / f"uniform-{n}", "uniform") for n in range(rounds)]
        ragged = [round_of(root / f"ragged-{n}", "ragged") for n in range(rounds)]
    to_floor = statistics.median(r["builtin"]["step"] / r["floor"]["step"] for r in uniform)
    uniform_trl = statistics.median(r["trl"]["step"] / r["builtin"]["step"] for r in uniform)
    ragged_trl = statistics.median(r["trl"]["step"] / r["builtin"]["step"] for r in ragged)
    ok = report(
        "step",
        to_floor,
        unit="ratio",
        target=FLOOR_TARGET,
        better="lower",
        detail={
            "uniform_builtin_to_floor": round(to_floor, 3),
            "uniform_trl_to_builtin": round(uniform_trl, 3),
            "ragged_trl_to_builtin": round(ragged_trl, 3),
            "ragged_target": TRL_TARGET,
            "uniform": middle(uniform),
            "ragged": middle(ragged),
            "rounds": rounds,
            "threads": THREADS,
        },
        besides=ragged_trl >= TRL_TARGET,
    )
    return 0 if ok else 1


def round_of(root: Path, kind: Kind) -> dict[str, Row]:
    """Medians of each side's steady steps."""
    root.mkdir()
    task = shared.write(root, kind, STEPS)
    sides = {"builtin": builtin(task), "trl": side("trl_grpo", "trl", task)}
    if kind == "uniform":
        sides["floor"] = side("floor", "floor", task)
    for name, row in sides.items():
        shown = ", ".join(f"{key} {value:.3g}" for key, value in row.items())
        print(f"{kind}, {name}: {shown}", flush=True)
    return sides


def builtin(task: Task) -> Row:
    """The trainer as a user starts it, on a Ray of its own."""
    batch = str(shared.PROMPTS * shared.COMPLETIONS)
    run = task.root / "run"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray:
        started(
            [
                *("trainer", "--pretrain", str(task.model), "--prompt_data", str(task.prompts)),
                *("--input_key", "prompt", "--remote_rm_url", str(task.reward)),
                *("--run_dir", str(run), "--advantage_estimator", "group_norm"),
                *("--rollout_batch_size", str(shared.PROMPTS)),
                *("--n_samples_per_prompt", str(shared.COMPLETIONS)),
                *("--train_batch_size", batch, "--micro_rollout_batch_size", batch),
                *("--use_dynamic_batch", "--train_max_tokens_per_gpu", "1500"),
                *("--packing_samples", "--init_kl_coef", "0"),
                *("--generate_max_len", str(task.longest), "--max_steps", str(task.steps)),
                *("--actor_learning_rate", str(shared.LEARNING_RATE)),
            ],
            task.root / "builtin.log",
            RAY_TMPDIR=ray,
        )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "timing/step" in row][WARM:]
    names = {name for name in rows[0] if name.startswith("timing/")}
    shown = {name.removeprefix("timing/"): median(rows, name) for name in sorted(names)}
    return shown | {
        "mean_length": median(rows, "train/response_length"),
        "truncated": median(rows, "train/truncated"),
        "tokens_per_second": median(rows, "perf/tokens_per_second"),
    }


def side(module: str, name: str, task: Task) -> Row:
    arguments = [str(task.root), str(task.longest), str(task.steps)]
    started([f"bench.sides.{module}", *arguments], task.root / f"{name}.log")
    rows = json.loads((task.root / f"{name}.json").read_text())[WARM:]
    shown = {key: median(rows, key) for key in rows[0] if key != "tokens"}
    return shown | {"tokens_per_second": median(rows, "tokens") / shown["step"]}


def started(module: list[str], log: Path, **variables: str) -> None:
    """Run `python -m module` to its end, with the same threads and environment for every side."""
    unwanted = ("RAY_", "WANDB_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    environment = (
        inherited | {"OMP_NUM_THREADS": THREADS, "PYTHONPATH": str(Path.cwd())} | variables
    )
    with log.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", *module], env=environment, stdout=file, stderr=file
        )
    if ended.returncode:
        raise SystemExit(f"{module[0]} ended with {ended.returncode}:\n{log.read_text()[-3000:]}")


def median(rows: list[dict[str, Any]], name: str) -> float:
    return round(statistics.median(row[name] for row in rows), 4)


def middle(rounds: list[dict[str, Row]]) -> dict[str, Row]:
    """The round whose builtin step is the median one."""
    return sorted(rounds, key=lambda sides: sides["builtin"]["step"])[len(rounds) // 2]


if __name__ == "__main__":
    sys.exit(main())
