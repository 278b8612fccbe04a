"""Steady-state step time of the builtin GRPO and PPO against a hand-written floor and TRL's.

One model of a million parameters, 32 prompts x 8 completions, float32, both cores for every side.
*Uniform*: every completion has 32 tokens; the floor is a bare generate, forward, backward, AdamW,
and of PPO the reference and the critic besides. *Ragged*: a quarter of the limit of 128 in the
mean, some at the limit. The builtin trainer runs as in a job: its own processes, Ray actors,
metrics. TRL's PPO is that of the last release that has one. Each side runs with its fastest size
of a pass, which short runs find before the rounds: TRL's in completions (`--micros`), the builtin
trainer's in tokens (`--budgets`); gradients are accumulated to one update. Sides take turns, each
round in another order; ratios are of medians of steady steps in one round, and the median of the
rounds is reported. `products` is the time that the matrix products of the floor's step take at the
cores' full rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import task as shared
from bench.sides.task import Kind, Task
from env.http.arguments import positive

STEPS, WARM = 12, 4
SWEEP_STEPS = WARM + 3
"""Of a run that tries one size of a pass."""
BATCH = shared.PROMPTS * shared.COMPLETIONS
MICROS = (BATCH, BATCH // 2, BATCH // 4, BATCH // 8, BATCH // 16)
BUDGETS = (1500, 2700, 5400, 10800)
"""Tokens a pass; the last takes a whole batch of either kind in one."""
FLOOR_TARGET, TRL_TARGET = 1.03, 2.0
THREADS = str(os.cpu_count() or 1)
NICENESS = "0"
"""Of Ray's workers. Ray makes them 15, and a busy machine then slows this side alone."""
OLDER_TRL = Path(".peers/trl-ppo").absolute()
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "grpo": ("--advantage_estimator", "group_norm", "--init_kl_coef", "0"),
    "ppo": ("--advantage_estimator", "gae", "--init_kl_coef", str(shared.KL_COEF)),
}
TRL: dict[str, tuple[str, tuple[Path, ...]]] = {
    "trl grpo": ("trl_grpo", ()),
    "trl ppo": ("trl_ppo", (OLDER_TRL,)),
}
"""Module of `bench.sides`, and where it finds a library's older release."""
KINDS: tuple[Kind, ...] = ("uniform", "ragged")
Row = dict[str, float]
Sides = dict[str, Row]
Sweep = dict[str, dict[int, float]]
"""Of each side: seconds of a step by the size of a pass."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument(
        "--micros", type=positive, nargs="+", default=MICROS, choices=MICROS, metavar="N"
    )
    parser.add_argument("--budgets", type=positive, nargs="+", default=BUDGETS, metavar="N")
    given = parser.parse_args()
    rounds, results, swept = range(given.rounds), {}, {}
    with tempfile.TemporaryDirectory(prefix="rc-step-") as directory:
        for kind in KINDS:
            root = Path(directory) / kind
            root.mkdir()
            swept[kind] = sweep(root, kind, given.micros, given.budgets)
            best = {name: min(rows, key=rows.__getitem__) for name, rows in swept[kind].items()}
            results[kind] = [round_of(root / str(number), kind, number, best) for number in rounds]
    uniform, ragged = results["uniform"], results["ragged"]
    to_floor = round(statistics.median(sides["grpo"]["to_floor"] for sides in uniform), 4)
    ragged_trl = ratio(ragged, "trl grpo", "grpo")
    ok = report(
        "step",
        to_floor,
        unit="ratio",
        target=FLOOR_TARGET,
        better="lower",
        detail={
            "uniform_builtin_to_floor": to_floor,
            "uniform_builtin_ppo_to_floor": round(
                statistics.median(sides["ppo"]["to_floor"] for sides in uniform), 4
            ),
            "uniform_trl_to_builtin": ratio(uniform, "trl grpo", "grpo"),
            "ragged_trl_to_builtin": ragged_trl,
            "ragged_target": TRL_TARGET,
            "uniform_trl_ppo_to_builtin": ratio(uniform, "trl ppo", "ppo"),
            "uniform_trl_ppo_to_products": limit(uniform),
            "ragged_trl_ppo_to_builtin": ratio(ragged, "trl ppo", "ppo"),
            "uniform": middle(uniform),
            "ragged": middle(ragged),
            "seconds_by_size_of_a_pass": swept,
            "rounds": given.rounds,
            "threads": THREADS,
        },
        besides=ragged_trl >= TRL_TARGET,
    )
    return 0 if ok else 1


def sweep(root: Path, kind: Kind, micros: Sequence[int], budgets: Sequence[int]) -> Sweep:
    """Return the seconds of a step of each side by the size of a pass: all are tuned alike."""
    task = shared.write(root / "sweep", kind, SWEEP_STEPS)
    swept = {name: {micro: trl(name, task, micro)["step"] for micro in micros} for name in TRL}
    for name in ALGORITHMS:
        swept[name] = {budget: builtin(task, name, budget)["step"] for budget in budgets}
    print(f"{kind}, seconds of a step by the size of a pass: {swept}", flush=True)
    return swept


def round_of(root: Path, kind: Kind, number: int, best: dict[str, int]) -> Sides:
    """Medians of each side's steady steps; odd rounds begin with the last side."""
    task = shared.write(root, kind, STEPS)
    ours = builtin_and_floor if kind == "uniform" else builtin
    sides = {
        "grpo": partial(ours, task, "grpo", best["grpo"]),
        "trl grpo": partial(trl, "trl grpo", task, best["trl grpo"]),
        "ppo": partial(ours, task, "ppo", best["ppo"]),
        "trl ppo": partial(trl, "trl ppo", task, best["trl ppo"]),
    }
    names = list(sides) if number % 2 == 0 else list(reversed(sides))
    rows = {name: sides[name]() for name in names}
    for name in sides:
        shown = ", ".join(f"{key} {value:.3g}" for key, value in rows[name].items())
        print(f"{kind}, {name}: {shown}", flush=True)
    return rows


def builtin_and_floor(task: Task, algorithm: str, budget: int) -> Row:
    """The trainer, step by step in turns with the floor; `to_floor` is the median of the ratios."""
    task.waited.unlink(missing_ok=True)
    floor = threading.Thread(target=side, args=("floor", task, algorithm))
    floor.start()
    steps = train(task, algorithm, task.reward_in_turns, budget)
    floor.join()
    floors = json.loads((task.root / "floor.json").read_text())
    waits = [float(line) for line in task.waited.read_text().split()]
    for row, waited in zip(steps, waits, strict=True):
        row["timing/step"] -= waited
        row["timing/reward"] -= waited
    ratios = [row["timing/step"] / floor["step"] for row, floor in zip(steps, floors, strict=True)]
    keys = ("step", "generate", "update", "products")
    shown = {f"floor_{key}": median(floors[WARM:], key) for key in keys}
    return phases(steps) | shown | {"to_floor": round(statistics.median(ratios[WARM:]), 4)}


def builtin(task: Task, algorithm: str, budget: int) -> Row:
    return phases(train(task, algorithm, task.reward, budget))


def train(task: Task, algorithm: str, reward: Path, budget: int) -> list[dict[str, Any]]:
    """Metrics of each step of the trainer, started as a user does, on a Ray of its own."""
    batch = str(BATCH)
    run = task.root / f"run-{algorithm}-{budget}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray:
        started(
            [
                *("trainer", "--pretrain", str(task.model), "--prompt_data", str(task.prompts)),
                *("--input_key", "prompt", "--remote_rm_url", str(reward)),
                *("--run_dir", str(run), *ALGORITHMS[algorithm]),
                *("--rollout_batch_size", str(shared.PROMPTS)),
                *("--n_samples_per_prompt", str(shared.COMPLETIONS)),
                *("--train_batch_size", batch, "--micro_rollout_batch_size", batch),
                *("--use_dynamic_batch", "--train_max_tokens_per_gpu", str(budget)),
                *("--packing_samples", "--generate_max_len", str(task.longest)),
                *("--max_steps", str(task.steps)),
                *("--actor_learning_rate", str(shared.LEARNING_RATE)),
            ],
            task.root / f"{algorithm}.log",
            RAY_TMPDIR=ray,
            RAY_worker_niceness=NICENESS,
        )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "timing/step" in row]


def phases(steps: list[dict[str, Any]]) -> Row:
    """Medians of the steady steps."""
    rows = steps[WARM:]
    names = {name for name in rows[0] if name.startswith("timing/")}
    shown = {name.removeprefix("timing/"): median(rows, name) for name in sorted(names)}
    return shown | {
        "mean_length": median(rows, "train/response_length"),
        "truncated": median(rows, "train/truncated"),
        "tokens_per_second": median(rows, "perf/tokens_per_second"),
    }


def trl(name: str, task: Task, micro: int) -> Row:
    module, packages = TRL[name]
    return side(module, task, str(micro), *packages)


def side(module: str, task: Task, setting: str, *packages: Path) -> Row:
    """A program of bench.sides; `packages`: where it finds a library's older release."""
    path = os.pathsep.join(str(part) for part in (*packages, Path.cwd()))
    arguments = [str(task.root), str(task.longest), str(task.steps), setting]
    started([f"bench.sides.{module}", *arguments], task.root / f"{module}.log", PYTHONPATH=path)
    rows = json.loads((task.root / f"{module}.json").read_text())[WARM:]
    shown = {key: median(rows, key) for key in rows[0] if key != "tokens"}
    return shown | {"tokens_per_second": median(rows, "tokens") / shown["step"]}


def started(module: list[str], log: Path, **variables: str) -> None:
    """Run `python -m module` to its end, with the same threads and environment for every side."""
    unwanted = ("RAY_", "WANDB_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    common = {"OMP_NUM_THREADS": THREADS, "PYTHONPATH": str(Path.cwd())}
    with log.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", *module],
            env=inherited | common | variables,
            stdout=file,
            stderr=file,
        )
    if ended.returncode:
        raise SystemExit(f"{module[0]} ended with {ended.returncode}:\n{log.read_text()[-3000:]}")


def median(rows: list[dict[str, Any]], name: str) -> float:
    middle: float = statistics.median(row[name] for row in rows)
    return round(middle, 4)


def ratio(rounds: list[Sides], above: str, below: str) -> float:
    """The median over rounds of one side's step time against another's."""
    return round(statistics.median(r[above]["step"] / r[below]["step"] for r in rounds), 4)


def limit(rounds: list[Sides]) -> float:
    """TRL's PPO against the matrix products of its step alone: no trainer has a higher ratio."""
    return round(
        statistics.median(r["trl ppo"]["step"] / r["ppo"]["floor_products"] for r in rounds), 4
    )


def middle(rounds: list[Sides]) -> Sides:
    """The round whose builtin step is the median one."""
    return sorted(rounds, key=lambda sides: sides["grpo"]["step"])[len(rounds) // 2]


if __name__ == "__main__":
    sys.exit(main())
