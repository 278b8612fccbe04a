"""Asynchronous against synchronous training where a reward takes as long as training does.

GRPO on a bandit (the share of one digit) with a model of 0.8 million parameters, each run a
`python -m trainer` of its own on Ray with one engine, and a reward server in a process of its own
that answers as many seconds after a question as a training phase (forward and update) takes in a
synchronous run here, which is measured first. Every process computes with one thread, as if it had
a device of its own. Both sides have the same flags but for `--async_train --max_staleness 1`, and
start from the same seeds.

The value is samples per second of the steady steps, asynchronous against synchronous: the median
over seeds. Beside it, whether both learn as much from a sample: a batch's mean reward is a point of
the curve over the samples that the policy which wrote it had learned from, and the areas under the
curves are the same within noise: twice the standard error of their difference, by the spread over
seeds of whole areas or of single points, whichever is larger.
"""

# ruff: noqa: N999 - run by its name, imported by nobody
from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.result import report
from env.http.arguments import positive
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

TARGET = 1.6
PROMPTS, COMPLETIONS, LONGEST = 16, 8, 24
STEPS, WARM = 32, 4
LEARNING_RATE = 1e-4
AHEAD = ("--async_train", "--max_staleness", "1")
Rows = list[dict[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=positive, default=3)
    seeds = range(1, parser.parse_args().seeds + 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the ends of what it started
    with tempfile.TemporaryDirectory(prefix="rc-async-") as directory:
        root = Path(directory)
        prepare(root)
        seconds = training_seconds(root)
        print(f"A training phase, and hence a reward, takes {seconds:.2f} s.", flush=True)
        with judge(seconds) as url:
            rounds = [pair(root, url, seed) for seed in seeds]
    show(rounds)
    behind = [sides["synchronous"] for sides in rounds]
    ahead = [sides["asynchronous"] for sides in rounds]
    gains = [rate(a) / rate(b) for a, b in zip(ahead, behind, strict=True)]
    difference, noise = compared([curve(rows) for rows in ahead], [curve(rows) for rows in behind])
    ok = report(
        "async",
        statistics.median(gains),
        unit="ratio",
        target=TARGET,
        better="higher",
        detail={
            "gains": [round(gain, 4) for gain in gains],
            "reward_seconds": round(seconds, 4),
            "synchronous": [summary(rows) for rows in behind],
            "asynchronous": [summary(rows) for rows in ahead],
            "area_difference": round(difference, 4),
            "area_noise": round(noise, 4),
            "samples": STEPS * PROMPTS * COMPLETIONS,
        },
        besides=abs(difference) <= noise,
    )
    return 0 if ok else 1


def prepare(root: Path) -> None:
    write_model(TinyModel(max_length=64), "0123456789+=", root / "model")
    rows = [json.dumps({"prompt": f"{n}+1="}) for n in range(PROMPTS * STEPS)]
    (root / "prompts.jsonl").write_text("\n".join(rows) + "\n")


def training_seconds(root: Path) -> float:
    with judge(0.0) as url:
        rows = trained(root, "measure", url, seed=0, steps=3 * WARM)[WARM:]
    return statistics.median(row["timing/forward"] + row["timing/update"] for row in rows)


@contextmanager
def judge(seconds: float) -> Iterator[str]:
    """The URL of a reward server that answers after so many seconds."""
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.sides.judge", "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/get_reward"
    finally:
        server.terminate()
        server.wait(10)


def pair(root: Path, url: str, seed: int) -> dict[str, Rows]:
    """Both sides with one seed; every other seed begins with the other side."""
    sides: dict[str, tuple[str, ...]] = {"synchronous": (), "asynchronous": AHEAD}
    names = list(sides) if seed % 2 else list(reversed(sides))
    return {name: trained(root, f"{name}-{seed}", url, seed, STEPS, sides[name]) for name in names}


def trained(
    root: Path, name: str, url: str, seed: int, steps: int, mode: tuple[str, ...] = ()
) -> Rows:
    """The rows of a run's metrics."""
    samples = str(PROMPTS * COMPLETIONS)
    command = [
        *(sys.executable, "-m", "trainer", "--pretrain", str(root / "model")),
        *("--prompt_data", str(root / "prompts.jsonl"), "--input_key", "prompt"),
        *("--remote_rm_url", url, "--run_dir", str(root / name), "--seed", str(seed)),
        *("--advantage_estimator", "group_norm", "--init_kl_coef", "0"),
        *("--rollout_batch_size", str(PROMPTS), "--n_samples_per_prompt", str(COMPLETIONS)),
        *("--generate_max_len", str(LONGEST), "--prompt_max_len", "32"),
        *("--train_batch_size", samples, "--micro_rollout_batch_size", samples),
        *("--use_dynamic_batch", "--train_max_tokens_per_gpu", "1500", "--packing_samples"),
        *("--actor_learning_rate", str(LEARNING_RATE), "--lr_scheduler", "constant"),
        *("--is_correction_level", "token", "--max_steps", str(steps), *mode),
    ]
    unwanted = ("RAY_", "WANDB_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray:
        ended = subprocess.run(
            command,
            env=inherited | own | {"RAY_TMPDIR": ray},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if ended.returncode:
        raise SystemExit(f"{name} ended with {ended.returncode}:\n{ended.stdout[-3000:]}")
    lines = (root / name / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "timing/step" in row]


def rate(rows: Rows) -> float:
    """Samples per second from one step's end to another's, all that lies between included."""
    first, last = rows[WARM], rows[-1]
    steps = last["step"] - first["step"]
    return steps * PROMPTS * COMPLETIONS / (last["at"] - first["at"])


def curve(rows: Rows) -> list[float]:
    """The mean reward that each version of the policy got; one that ran ahead has no last one."""
    of_version: dict[int, list[float]] = {}
    for row in rows:
        version = round(row["step"] - 1 - row.get("train/staleness", 0))
        of_version.setdefault(version, []).append(row["train/reward"])
    return [statistics.fmean(of_version[version]) for version in range(STEPS - 1)]


def area(rows: Rows) -> float:
    return statistics.fmean(curve(rows))


def compared(ours: Sequence[list[float]], theirs: Sequence[list[float]]) -> tuple[float, float]:
    """The difference of the areas under two sides' curves, of one seed each, and its noise."""
    areas = [[statistics.fmean(one) for one in side] for side in (ours, theirs)]
    difference = statistics.fmean(areas[0]) - statistics.fmean(areas[1])
    if len(ours) < 2:
        return difference, math.inf
    whole = sum(statistics.variance(side) for side in areas)
    points = [statistics.variance(at) for side in (ours, theirs) for at in zip(*side, strict=True)]
    single = 2 * statistics.fmean(points) / len(ours[0])
    return difference, 2 * math.sqrt(max(whole, single) / len(ours))


def summary(rows: Rows) -> dict[str, Any]:
    steady = rows[WARM:]
    names = sorted({name for row in steady for name in row if name.startswith("timing/")})
    medians = {
        name.removeprefix("timing/"): round(statistics.median(row[name] for row in steady), 4)
        for name in names
    }
    return {
        "samples_per_second": round(rate(rows), 1),
        "area": round(area(rows), 4),
        "last_reward": round(statistics.fmean(row["train/reward"] for row in rows[-4:]), 4),
        "staleness": round(statistics.fmean(row.get("train/staleness", 0) for row in steady), 4),
        "seconds": medians,
    }


def show(rounds: list[dict[str, Rows]]) -> None:
    print("samples  synchronous  asynchronous   (mean reward after so many, over seeds)")
    curves = {
        name: [curve(sides[name]) for sides in rounds] for name in ("synchronous", "asynchronous")
    }
    for version in range(STEPS - 1):
        means = [statistics.fmean(one[version] for one in side) for side in curves.values()]
        print(f"{version * PROMPTS * COMPLETIONS:7}  {means[0]:11.3f} {means[1]:13.3f}")


if __name__ == "__main__":
    sys.exit(main())
