"""SFT's throughput under torchrun, against TRL's own script with the same model, rows and batches.

Two ranks of this machine train a small transformer; both sides take turns. The value is the ratio
of the medians of the Trainer's own `train_samples_per_second`, ours over TRL's. `detail` has every
figure, and the loss of the last step, which must agree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.result import report
from env.http.arguments import positive
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

TARGET = 0.98
ALPHABET = "0123456789+= abcdefghijklmnopqrstuvwxyz"
RANKS, BATCH, MAX_LENGTH, RATE = 2, 16, 96, "1e-3"
SHAPE = TinyModel(hidden_size=128, layers=4, heads=4, max_length=MAX_LENGTH)
LOSS_TOLERANCE = 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rc-supervised-") as directory:
        root = Path(directory)
        prepare(root, BATCH * arguments.steps)
        sides = {"rollcall": ours(root, arguments.steps), "trl": theirs(root, arguments.steps)}
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, words in sides.items():
                rows[name].append(measured(words))
    speeds = {name: [row["train_samples_per_second"] for row in rows[name]] for name in rows}
    losses = {name: rows[name][0]["loss"] for name in rows}
    ok = report(
        "supervised",
        median(speeds["rollcall"]) / median(speeds["trl"]),
        unit="ratio",
        target=TARGET,
        better="higher",
        detail={"samples_per_second": speeds, "last_loss": losses, "ranks": RANKS},
        besides=abs(losses["rollcall"] - losses["trl"]) < LOSS_TOLERANCE,
    )
    return 0 if ok else 1


def prepare(root: Path, rows: int) -> None:
    """Write a model with random weights, and rows of several lengths."""
    write_model(SHAPE, ALPHABET, root / "model")
    draw = random.Random(7)
    (root / "data").mkdir()
    lines = [
        json.dumps({"prompt": text(draw, 30), "completion": text(draw, 50)}) for _ in range(rows)
    ]
    (root / "data" / "train.jsonl").write_text("\n".join(lines))


def text(draw: random.Random, longest: int) -> str:
    return "".join(draw.choices(ALPHABET, k=draw.randint(5, longest)))


def ours(root: Path, steps: int) -> list[str]:
    return [
        *("-m", "trainer.supervised", "sft", "--pretrain", str(root / "model")),
        *("--dataset", str(root / "data" / "train.jsonl"), "--run_dir", str(root / "run")),
        *("--train_batch_size", str(BATCH), "--max_steps", str(steps), "--learning_rate", RATE),
        *("--max_len", str(MAX_LENGTH), "--logging_steps", "1", "--lr_scheduler", "constant"),
        *("--save_steps", "-1"),
    ]


def theirs(root: Path, steps: int) -> list[str]:
    on_cpu = not torch.cuda.is_available()
    return [
        *("-m", "trl.scripts.sft", "--model_name_or_path", str(root / "model")),
        *("--dataset_name", str(root / "data"), "--output_dir", str(root / "trl")),
        *("--per_device_train_batch_size", str(BATCH // RANKS), "--max_steps", str(steps)),
        *("--learning_rate", RATE, "--max_length", str(MAX_LENGTH), "--logging_steps", "1"),
        *("--lr_scheduler_type", "constant", "--warmup_steps", "0.03", "--seed", "42"),
        *("--use_cpu", str(on_cpu).lower(), "--bf16", str(not on_cpu).lower()),
        *("--gradient_checkpointing", "false", "--save_strategy", "no", "--report_to", "none"),
        *("--disable_tqdm", "true"),
    ]


def measured(words: Sequence[str]) -> dict[str, float]:
    """Return the figures that the Trainer prints at the end of a run, and its last loss."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    done = subprocess.run(
        [sys.executable, *launcher, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) < 2:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    figures: list[dict[str, Any]] = [ast.literal_eval(line) for line in lines]
    last = next(row for row in reversed(figures) if "loss" in row)
    end = next(row for row in reversed(figures) if "train_samples_per_second" in row)
    speed = float(end["train_samples_per_second"])
    return {"train_samples_per_second": speed, "loss": float(last["loss"])}


if __name__ == "__main__":
    sys.exit(main())
