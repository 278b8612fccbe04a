"""The bare floor: what a step costs when a hand writes it, with nothing around it.

`generate` of transformers, one forward, one backward and one AdamW step on completions of equal
length; no reward, no cluster, no metrics. PPO has a pass of the reference and one of the critic
before the update, and the critic's update. It makes a step whenever somebody connects, and says
when it is done. `products` are the seconds that the matrix products of its step would take at the
fastest rate of the model's own shapes on this machine: no trainer's step is shorter.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
)

from bench.sides import task as shared


class Model:
    """A model with its optimizer; both sides of PPO train one."""

    def __init__(self, model: nn.Module) -> None:
        self.module: Any = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=shared.LEARNING_RATE)

    def learn(self, loss: Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


class Floor:
    def __init__(self, task: shared.Task, algorithm: str) -> None:
        path, fp32 = task.model, {"dtype": torch.float32}
        self._policy = Model(AutoModelForCausalLM.from_pretrained(path, **fp32))
        self._judges: tuple[nn.Module, Model] | None = None
        if algorithm == "ppo":
            critic = AutoModelForTokenClassification.from_pretrained(path, num_labels=1, **fp32)
            reference = AutoModelForCausalLM.from_pretrained(path, **fp32)
            self._judges = reference, Model(critic)
        tokenizer = AutoTokenizer.from_pretrained(task.model)
        self._sampling = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_new_tokens=task.longest,
            pad_token_id=0,
        )
        texts = [f"{number:05d} and " for number in range(shared.PROMPTS)]
        prompts = tokenizer(texts, return_tensors="pt")["input_ids"]
        self._prompts = prompts.repeat_interleave(shared.COMPLETIONS, 0)

    def products(self) -> float:
        """Seconds that the matrix products of a step take at least."""
        counter = FlopCounterMode(display=False)
        with counter:
            rows = self.step()["tokens"]
        config = self._policy.module.config
        wide, narrow = config.intermediate_size, config.hidden_size
        return counter.get_total_flops() / rate_of_products(int(rows), narrow, wide)

    def step(self) -> dict[str, float]:
        """Seconds of the step and of its parts, and how many tokens it has seen."""
        began = time.perf_counter()
        prompts, width = self._prompts, self._prompts.shape[1]
        with torch.no_grad():
            tokens = self._policy.module.generate(
                prompts, attention_mask=torch.ones_like(prompts), generation_config=self._sampling
            )
        generated = time.perf_counter()
        advantages = torch.randn(len(tokens), 1)
        if self._judges:
            reference, critic = self._judges
            with torch.no_grad():
                kl = log_probs_of(reference, tokens, width)
                values = values_of(critic.module, tokens, width)
            advantages = advantages - shared.KL_COEF * kl - values
        log_probs = log_probs_of(self._policy.module, tokens, width)
        self._policy.learn(-((log_probs - log_probs.detach()).exp() * advantages).mean())
        if self._judges:
            errors = values_of(critic.module, tokens, width) - advantages
            critic.learn(errors.square().mean())
        ended = time.perf_counter()
        return {
            "step": ended - began,
            "generate": generated - began,
            "update": ended - generated,
            "tokens": tokens.numel(),
        }


def log_probs_of(model: nn.Module, tokens: Tensor, width: int) -> Tensor:
    """Log probability of each token after the first `width`, of shape (samples, tokens)."""
    logits = model(tokens[:, :-1]).logits[:, width - 1 :]
    log_probs: Tensor = logits.log_softmax(-1).gather(-1, tokens[:, width:, None]).squeeze(-1)
    return log_probs


def values_of(critic: nn.Module, tokens: Tensor, width: int) -> Tensor:
    """Value at each token after the first `width`, of shape (samples, tokens)."""
    values: Tensor = critic(tokens[:, :-1]).logits[:, width - 1 :, 0]
    return values


def rate_of_products(rows: int, narrow: int, wide: int, times: int = 20) -> float:
    """FLOP/s of the fastest of `times` products of (rows, narrow) with (narrow, wide)."""
    left, right = torch.randn(rows, narrow), torch.randn(narrow, wide)
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2 * rows * narrow * wide / min(seconds)


def main(root: str, longest: int, steps: int, algorithm: str) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = shared.Task(Path(root), longest, steps)
    rows = []
    with Listener(str(task.turns)) as listener:
        floor = Floor(task, algorithm)
        products = floor.products()
        for _ in range(steps):
            with listener.accept() as other:
                rows.append(floor.step() | {"products": products})
                other.send("done")
    shared.report(task.root / "floor.json", rows)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
