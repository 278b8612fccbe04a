"""The bare floor: what a step costs when a hand writes it, with nothing around it.

`generate` of transformers, one forward, one backward and one AdamW step on completions of equal
length; no reward, no cluster, no metrics. It makes a step whenever somebody connects, and says when
it is done.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Listener
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from bench.sides import task as shared


class Floor:
    def __init__(self, task: shared.Task) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(task.model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=shared.LEARNING_RATE)
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

    def step(self) -> dict[str, float]:
        """Seconds of the step and of its parts, and how many tokens it has seen."""
        began = time.perf_counter()
        prompts, width = self._prompts, self._prompts.shape[1]
        with torch.no_grad():
            tokens = self._model.generate(
                prompts, attention_mask=torch.ones_like(prompts), generation_config=self._sampling
            )
        generated = time.perf_counter()
        advantages = torch.randn(len(tokens), 1)
        logits = self._model(tokens[:, :-1]).logits[:, width - 1 :]
        log_probs = logits.log_softmax(-1).gather(-1, tokens[:, width:, None]).squeeze(-1)
        loss = -((log_probs - log_probs.detach()).exp() * advantages).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        ended = time.perf_counter()
        return {
            "step": ended - began,
            "generate": generated - began,
            "update": ended - generated,
            "tokens": tokens.numel(),
        }


def main(root: str, longest: int, steps: int) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = shared.Task(Path(root), longest, steps)
    rows = []
    with Listener(str(task.turns)) as listener:
        floor = Floor(task)
        for _ in range(steps):
            with listener.accept() as other:
                rows.append(floor.step())
                other.send("done")
    shared.report(task.root / "floor.json", rows)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
