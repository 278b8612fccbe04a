"""A task that only seeing solves: is the square bright or dark? The row's text is the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import PIL.Image

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.types import RewardRequest, Score
from tests.support.tiny_run import Tiny

ANSWERS = {"0": (20, 20, 20), "1": (235, 235, 235)}
SHAPE = TinyModel(architecture="qwen2_5_vl", hidden_size=32, layers=2, heads=2, max_length=64)


def make(root: Path, rows: int = 16) -> Tiny:
    """Write a model, one image for each answer, and rows in OpenRLHF-M's form."""
    write_model(SHAPE, "01?", root / "model")
    for answer, colour in ANSWERS.items():
        PIL.Image.new("RGB", (56, 56), colour).save(root / f"{answer}.png")
    with (root / "rows.jsonl").open("w") as file:
        for row in range(rows):
            answer = str(row % 2)
            parts = [
                {"type": "image", "image": f"{answer}.png"},
                {"type": "text", "text": "?"},
            ]
            chat = json.dumps([{"role": "user", "content": parts}])
            file.write(json.dumps({"message": chat, "answer": answer}) + "\n")
    return Tiny(root / "model", root / "rows.jsonl", root / "rows.jsonl")


def reward(requests: Sequence[RewardRequest]) -> list[Score]:
    """Return 1 for a completion that begins with the label."""
    return [Score.of(float(r.response.startswith(r.label or "?"))) for r in requests]


FLAGS = {"input_key": "message", "generate_max_len": 1, "prompt_max_len": 32}
