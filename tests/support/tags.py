"""A model of Search-R1's format whose tags are special tokens, and which writes one script."""

from __future__ import annotations

import string
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.rewards.python_file import load_module

NAMES = ("think", "search", "information", "answer")
TAGS = [f"<{end}{name}>" for name in NAMES for end in ("", "/")]
ALPHABET = [*string.ascii_letters, *string.digits, *"():.?=", " ", "\n"]
QUESTION = "Who wrote it?"
SEARCHING = ["<think>", "x", "</think>", "<search>", "E", "m", "a", "</search>"]
ANSWERING = ["<answer>", "J", "</answer>", "<eos>"]
REPLIES = ("<think>x</think><search>Ema</search>", "<answer>J</answer>")
CERTAIN = 40.0
"""Logit of the next token of the script; all others are near 0."""
SHAPE = TinyModel(hidden_size=128, layers=1, heads=4, max_length=256)
"""Heads of 32: vLLM's attention has no smaller ones."""
ENVIRONMENT = """\
from types import SimpleNamespace

from env.environments.search import Search

FOUND = SimpleNamespace(title="Ema", text="a novel by J.")


class Passages:
    async def search(self, queries):
        assert list(queries) == ["Ema"], queries
        return [SimpleNamespace(status="ok", documents=[FOUND], error="")]

    async def close(self):
        pass


class Searching(Search):
    def __init__(self):
        super().__init__(Passages())
"""
INFORMATION = "\n\n<information>Doc 1(Title: Ema) a novel by J.</information>\n\n"


def write_tagged_model(out: Path) -> Path:
    """Write a model that searches after a question, and answers after information."""
    write_model(SHAPE, ALPHABET, out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokenizer.add_special_tokens({"additional_special_tokens": TAGS})
    tokenizer.save_pretrained(out)
    config = AutoConfig.from_pretrained(out)
    config.vocab_size, config.tie_word_embeddings = len(tokenizer), False
    model = AutoModelForCausalLM.from_config(config)
    script = [*pairwise(["?", *SEARCHING]), *pairwise(["\n", *ANSWERING])]
    _learn(model, [tuple(map(tokenizer.convert_tokens_to_ids, pair)) for pair in script])
    model.save_pretrained(out)
    return out


def _learn(model: Any, pairs: list[tuple[int, ...]]) -> None:
    """Have the model write the second token of a pair after the first, whatever came before."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.zero_()
        model.lm_head.weight.normal_(std=1e-3, generator=torch.Generator().manual_seed(0))
        embedding = model.get_input_embeddings().weight
        embedding.fill_diagonal_(1.0)
        size = embedding.shape[1] ** 0.5
        """Of a token's direction, behind the last norm."""
        for last, after in pairs:
            model.lm_head.weight[after, last] = CERTAIN / size


def write_environment(directory: Path) -> str:
    """Write a file with a search of one passage; return the value of --environment."""
    file = directory / "searching.py"
    file.write_text(ENVIRONMENT)
    return f"{file}:Searching"


def searching(directory: Path) -> Any:
    """Return the environment of an episode."""
    file, _, name = write_environment(directory).partition(":")
    return getattr(load_module(Path(file)), name)()
