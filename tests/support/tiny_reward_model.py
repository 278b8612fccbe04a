"""Tiny reward models with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

TINY = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)


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
