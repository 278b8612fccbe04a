"""Tiny reward models with random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from env.prepare.model import tiny_config, write_model
from env.prepare.tiny_model import TinyModel
from tests.support.tokenisers import made

TINY = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)


def write_reward_model_of(kind: str, out: Path, template: str | None = None, **config: Any) -> Path:
    """Write a model with one output and the tokeniser of a kind; `config`: what its config says."""
    tokenizer = made(kind, template)
    tokenizer.save_pretrained(out)
    shape = tiny_config(replace(TINY, max_length=512), len(tokenizer))
    shape.num_labels, shape.pad_token_id = 1, tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_config(shape).save_pretrained(out)
    file = out / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return out


def write_reward_model(
    out: Path, alphabet: str, seed: int = 0, shape: TinyModel = TINY, **config: Any
) -> Path:
    """A model with one output and a vocabulary of its own."""
    write_model(shape, alphabet, out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            out, **{"num_labels": 1, **config}
        )
    model.save_pretrained(out)
    return out
