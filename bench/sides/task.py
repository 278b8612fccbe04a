"""What all sides of the step benchmark share: a model, prompts, a reward, the shapes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["uniform", "ragged"]
PROMPTS, COMPLETIONS, PROMPT_LENGTH = 32, 8, 10
LEARNING_RATE = 1e-6
KL_COEF = 0.05
"""Of PPO, which has a reference and a critic besides; GRPO runs without a KL."""
REWARD = """
def reward_func(queries, prompts, labels):
    return [share(query[len(prompt):]) for query, prompt in zip(queries, prompts)]


def share(text):
    return sum(character in "aeiou" for character in text) / max(1, len(text))
"""
TURN = """
import time
from multiprocessing.connection import Client


def reward_func(queries, prompts, labels):
    scores = [share(query[len(prompt):]) for query, prompt in zip(queries, prompts)]
    if len(queries) < {batch}:
        return scores
    began = time.perf_counter()
    with Client({turns!r}) as other:
        other.recv()
    with open({waited!r}, "a") as file:
        print(time.perf_counter() - began, file=file)
    return scores
"""
"""Appended to REWARD: let another side make a step first, and note how long that took. The check of
the first rows, before training, takes no turn."""


@dataclass(frozen=True)
class Task:
    """A folder with a model, prompts and a reward function, and the longest completion."""

    root: Path
    longest: int
    steps: int

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.jsonl"

    @property
    def reward(self) -> Path:
        return self.root / "reward.py"

    @property
    def turns(self) -> Path:
        """The socket at which a side that makes its steps in turns with another listens."""
        return self.root / "turns"

    @property
    def reward_in_turns(self) -> Path:
        return self.root / "reward_in_turns.py"

    @property
    def waited(self) -> Path:
        """Seconds for which each reward has waited for the other side."""
        return self.root / "waited"


def write(root: Path, kind: Kind, steps: int) -> Task:
    """Completions of 32 tokens all, or of 32 in the mean with a limit of 128.

    How likely a completion is to end at any token is in the model's own weights.
    """
    root.mkdir(parents=True)
    task = Task(root, 32 if kind == "uniform" else 128, steps)
    write_model(task.model, ends_after=None if kind == "uniform" else task.longest / 4)
    rows = [f"{number:05d} and " for number in range(PROMPTS * steps)]
    task.prompts.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    task.reward.write_text(REWARD)
    batch = PROMPTS * COMPLETIONS
    turn = TURN.format(turns=str(task.turns), waited=str(task.waited), batch=batch)
    task.reward_in_turns.write_text(REWARD + turn)
    return task


def write_model(out: Path, ends_after: float | None) -> None:
    """A model of a million parameters that ends with probability 1 / `ends_after` at each token.

    One of its hidden dimensions is the same for every token; the end token's row in the head reads
    that one, as trained models' heads do by directions of their own.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from env.prepare.model import tiny_config, write_model
    from env.prepare.tiny_model import TinyModel

    logging.disable_progress_bar()
    shape = TinyModel(max_length=256)
    write_model(shape, None, out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    config = tiny_config(shape, len(tokenizer))
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0.3
        tokens = torch.randint(3, len(tokenizer), (64, 32))
        states = model.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
        others = states @ model.lm_head.weight.T
        others[:, tokenizer.eos_token_id] = -torch.inf
        wanted = torch.tensor(-40.0)
        if ends_after is not None:
            odds = 1 / (ends_after - 1)
            wanted = others.logsumexp(-1).mean() + torch.tensor(odds).log()
        end = model.lm_head.weight[tokenizer.eos_token_id]
        end.zero_()
        end[0] = wanted / states[:, 0].mean()
    model.save_pretrained(out)


def report(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows))
