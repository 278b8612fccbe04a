"""TRL's GRPO on the same task, with so many completions a pass of the update."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.sides import task as shared


class Times(TrainerCallback):
    """Seconds of each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.rows.append({"step": time.perf_counter() - self._began})


def main(root: str, longest: int, steps: int, micro: int) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = shared.Task(Path(root), longest, steps)
    space: dict[str, Any] = {}
    exec(task.reward.read_text(), space)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [space["share"](completion) for completion in completions]

    batch = shared.PROMPTS * shared.COMPLETIONS
    config = GRPOConfig(
        output_dir=str(task.root / "trl"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro,
        num_generations=shared.COMPLETIONS,
        max_completion_length=longest,
        learning_rate=shared.LEARNING_RATE,
        max_steps=steps,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
    )
    times = Times()
    rows = [json.loads(line) for line in task.prompts.read_text().splitlines()]
    trainer = GRPOTrainer(
        str(task.model), reward, args=config, train_dataset=Dataset.from_list(rows)
    )
    trainer.add_callback(times)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "completions/mean_length" in row]
    for row, log in zip(times.rows, logged, strict=True):
        row["mean_length"] = log["completions/mean_length"]
        row["tokens"] = batch * (shared.PROMPT_LENGTH + log["completions/mean_length"])
    shared.report(task.root / "trl_grpo.json", times.rows)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
