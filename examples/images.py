"""A policy that sees: "0" for a dark picture, "1" for a bright one; the rows' texts are the same.

python examples/images.py

On a GPU: `pretrain="Qwen/Qwen2.5-VL-3B-Instruct"`, and rows of your own in the same form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import PIL.Image

from rollcall import RewardRequest, Score, train

BRIGHTNESS = {"0": 20, "1": 235}


def reward(requests: Sequence[RewardRequest]) -> list[Score]:
    """Return 1 for each completion that begins with its row's answer."""
    return [Score.of(float(r.response[:1] == r.label)) for r in requests]


def write_rows(root: Path) -> Path:
    """Write two pictures, and 16 chats that name them relative to their own file; return that."""
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for answer, brightness in BRIGHTNESS.items():
        PIL.Image.new("L", (56, 56), brightness).convert("RGB").save(root / f"{answer}.png")
        content = [{"type": "image", "image": f"{answer}.png"}, {"type": "text", "text": "="}]
        rows += 8 * [{"prompt": [{"role": "user", "content": content}], "answer": answer}]
    file = root / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


if __name__ == "__main__":
    result = train(
        pretrain="data/sees/model",  # examples/README.md makes it
        prompt_data=str(write_rows(Path("data/sees/rows"))),
        input_key="prompt",
        label_key="answer",
        reward=reward,
        advantage_estimator="group_norm",
        n_samples_per_prompt=8,
        rollout_batch_size=8,
        micro_rollout_batch_size=64,
        train_batch_size=64,
        micro_train_batch_size=64,
        generate_max_len=1,
        prompt_max_len=32,
        actor_learning_rate=3e-3,
        lr_scheduler="constant",
        init_kl_coef=0,
        max_steps=int(sys.argv[1]) if sys.argv[1:] else 40,
        run_dir="runs/images",
    )
    print(
        f"reward {result.reward_first:.2f} in the first step, {result.reward_last:.2f} in the last"
    )
