"""PPO of TRL 1.12, the last with one, on the same task: one update a step, as everywhere here."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer

from bench.sides import task as shared


class Share(nn.Module):
    """The task's reward in the shape of the reward model that this trainer asks for.

    Next to nothing to compute, as a reward function is: the side is not charged for a model.
    """

    base_model_prefix = "backbone"
    vowels: Tensor

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        vowels = [tokenizer.decode([token]) in "aeiou" for token in range(len(tokenizer))]
        self.register_buffer("vowels", torch.tensor(vowels, dtype=torch.float32))
        self.lengths: list[float] = []

    def backbone(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        written = attention_mask[:, shared.PROMPT_LENGTH :].float()
        self.lengths.append(float(written.sum(1).mean()))
        share = (self.vowels[input_ids] * attention_mask).cumsum(1) / attention_mask.cumsum(1)
        return SimpleNamespace(hidden_states=[share[..., None]])

    def score(self, states: Tensor) -> Tensor:
        return states


class Times(TrainerCallback):
    """When each step ended: it tells of no beginnings."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())


def main(root: str, longest: int, steps: int, micro: int) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = shared.Task(Path(root), longest, steps)
    tokenizer = AutoTokenizer.from_pretrained(task.model, padding_side="left")
    texts = [json.loads(line)["prompt"] for line in task.prompts.read_text().splitlines()]
    rows = [row for row in tokenizer(texts)["input_ids"] for _ in range(shared.COMPLETIONS)]
    batch = shared.PROMPTS * shared.COMPLETIONS
    config = PPOConfig(
        output_dir=str(task.root / "trl-ppo"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro,
        local_rollout_forward_batch_size=micro,
        total_episodes=batch * steps,
        num_ppo_epochs=1,
        num_sample_generations=0,
        response_length=longest,
        temperature=1.0,
        stop_token="eos",
        kl_coef=shared.KL_COEF,
        learning_rate=shared.LEARNING_RATE,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
    )
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32) for _ in range(2)
    )
    critic = AutoModelForSequenceClassification.from_pretrained(
        task.model, dtype=torch.float32, num_labels=1
    )
    data, reward, times = Dataset.from_dict({"input_ids": rows}), Share(tokenizer), Times()
    trainer = PPOTrainer(
        config, tokenizer, policy, reference, reward, data, critic, eval_dataset=data.select([0])
    )
    trainer.add_callback(times)
    trainer.train()
    shared.report(
        task.root / "trl_ppo.json",
        [
            {
                "step": end - begin,
                "mean_length": length,
                "tokens": batch * (shared.PROMPT_LENGTH + length),
            }
            for begin, end, length in zip(times.ends, times.ends[1:], reward.lengths, strict=False)
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
