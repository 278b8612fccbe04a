"""The pipeline of sums: its data, and how many held-out sums a model answers."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from env.rewards import arithmetic
from env.types import RewardRequest
from tests.support.repository import ROOT

EXAMPLE = ROOT / "examples" / "sums.yaml"
MAKE = ("arithmetic", "--max-operand", "19", "--train-size", "400", "--warmup-size", "100")
PAIRS = ("--eval-size", "60", "--pairs-size", "20000", "--layers", "2")
"""As the example's comment has them."""
LONGEST = 5
"""Tokens of an answer."""


def accuracy(model: Path, rows: Path) -> float:
    """The share of the rows' sums that the model answers exactly, decoded greedily."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    read = [json.loads(line) for line in rows.read_text().splitlines()]
    by_length: defaultdict[int, list[dict[str, str]]] = defaultdict(list)
    for row in read:
        by_length[len(row["prompt"])].append(row)
    right = 0.0
    for same in by_length.values():  # no padding
        tokens = tokenizer([row["prompt"] for row in same], return_tensors="pt")["input_ids"]
        made = policy.generate(tokens, max_new_tokens=LONGEST, do_sample=False)
        texts = tokenizer.batch_decode(made[:, tokens.shape[1] :], skip_special_tokens=True)
        requests = [
            RewardRequest(row["prompt"] + text, row["prompt"], row["answer"])
            for row, text in zip(same, texts, strict=True)
        ]
        right += sum(score.reward for score in arithmetic.exact(requests))
    return right / len(read)
