"""A run of the builtin trainer that takes a moment: a tiny model, sums of one digit."""

from __future__ import annotations

import json
from pathlib import Path

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel


def tiny_job(root: Path, steps: int, reward: str = "arithmetic") -> list[str]:
    """The flags; model and prompts are written below `root`."""
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, "0123456789+=", root / "model")
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(16)]
    (root / "prompts.jsonl").write_text("\n".join(rows))
    return [
        *("--pretrain", str(root / "model"), "--prompt_data", str(root / "prompts.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", reward),
        *("--rollout_batch_size", "8", "--train_batch_size", "8", "--generate_max_len", "3"),
        *("--advantage_estimator", "reinforce", "--init_kl_coef", "0", "--max_steps", str(steps)),
    ]
