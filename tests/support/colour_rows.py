"""Which colour fills the picture? Rows in MathV60K's shape, made ready by `prepare mathv60k`.

All rows ask the same, so a policy that does not see is right in a quarter of the samples at most.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import PIL.Image

from env.prepare.__main__ import main as prepare
from env.prepare.mathv60k import ARCHIVE, ROWS
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.tiny_run import Tiny

QUESTION = "Which colour fills the picture?"
COLOURS = {
    "red": (210, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 60, 210),
    "yellow": (220, 210, 50),
}
BLIND = 1 / len(COLOURS)
"""Share of right answers that a policy has at most if it does not see."""
SHAPE = TinyModel(architecture="qwen2_5_vl", hidden_size=32, layers=2, heads=2, max_length=64)
FLAGS: dict[str, Any] = {
    "input_key": "message",
    "label_key": "answer",
    "remote_rm_url": "mathvista",
    "rollout_engine": "hf",
    "prompt_max_len": 32,
    "generate_max_len": 1,
    "advantage_estimator": "group_norm",
    "init_kl_coef": 0,
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 128,
    "train_batch_size": 128,
    "micro_train_batch_size": 128,
    "actor_learning_rate": 3e-3,
    "lr_scheduler": "constant",
    "max_steps": 72,
}


def make(root: Path, train: int = 256, held_out: int = 64) -> Tiny:
    """Write a model and the two sets of rows, as the RunPod guide's user does."""
    write_model(SHAPE, (QUESTION, *COLOURS), root / "model")
    for name, rows, seed in (("train", train, 0), ("eval", held_out, 1)):
        source(root / f"{name}-source", rows, seed)
        argv = ["mathv60k", "--source", root / f"{name}-source", "--out", root / name]
        assert prepare([str(word) for word in argv]) == 0
    return Tiny(root / "model", root / "train" / ROWS, root / "eval" / ROWS)


def source(out: Path, rows: int, seed: int) -> None:
    """Write MathV60K's two files: the rows, and the archive of pictures of several sizes."""
    random = np.random.default_rng(seed)
    out.mkdir()
    names = list(COLOURS)
    with tarfile.open(out / ARCHIVE, "w:gz") as tar, (out / ROWS).open("w") as file:
        for number in range(rows):
            answer = names[number % len(names)]
            width, height = (int(edge) for edge in random.integers(56, 96, 2))
            noise = random.normal(COLOURS[answer], 12, (height, width, 3))
            content = io.BytesIO()
            PIL.Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(content, "PNG")
            path = f"mathv60k_img/Colours/images/{number}.png"
            member = tarfile.TarInfo(path)
            member.size = content.tell()
            content.seek(0)
            tar.addfile(member, content)
            message = [
                {"type": "image", "image": f"/share/someone/data/mathv60k/{path}"},
                {"type": "text", "text": QUESTION},
            ]
            chat = json.dumps([{"role": "user", "content": message}])
            row = {"message": chat, "answer": answer, "id": str(number), "task": "Colours"}
            file.write(json.dumps(row) + "\n")


def assert_seeing_was_learned(rows: Sequence[Mapping[str, Any]]) -> None:
    """`rows`: of metrics.jsonl."""
    values = [row["train/reward"] for row in rows if "train/reward" in row]
    before, *_, after = [row["eval/pass1"] for row in rows if "eval/pass1" in row]
    print(
        f"reward: {values[0]:.2f} in the first step, {fmean(values[-5:]):.2f} in the last five; "
        f"held-out pictures: {before:.0%} before, {after:.0%} after"
    )
    assert values[0] < BLIND
    assert fmean(values[-5:]) > 0.8
    assert before <= BLIND
    assert after > 0.9
