"""OpenRLHF's own mix of data sets, and the tokens of its reward models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from absent import empty_modules
from datasets import Dataset
from transformers import AutoTokenizer

PACKAGES = ("deepspeed", "flash_attn", "peft", "pylatexenc", "torchdata", "vllm")

with empty_modules(*PACKAGES):
    from openrlhf.cli.serve_rm import RewardModelProxy
    from openrlhf.datasets.reward_dataset import RewardDataset
    from openrlhf.datasets.utils import blending_datasets


def blended(datasets: str, shares: str | None, seed: int, most: int) -> list[str]:
    """The texts of the rows as its trainer has them before it shuffles."""
    strategy = SimpleNamespace(
        args=SimpleNamespace(use_ms=False), print=lambda *_: None, is_rank_0=lambda: False
    )
    rows = blending_datasets(datasets, shares, strategy, seed, max_count=most)
    texts: list[str] = rows.select(range(min(most, len(rows))))["input"][:]
    return list(texts)


def trained_on(model: str, rows: list[dict[str, Any]], *, chats: bool) -> list[list[int]]:
    """The tokens of `chosen` in which train_rm.py has a reward model read the rows."""
    data = SimpleNamespace(
        prompt_key="prompt",
        chosen_key="chosen",
        rejected_key="chosen",
        apply_chat_template=chats,
        tokenizer_chat_template=None,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    strategy = SimpleNamespace(args=SimpleNamespace(data=data))
    read = RewardDataset(Dataset.from_list(rows), tokenizer, 512, strategy, num_processors=1)
    return [read[row][0][0].tolist() for row in range(len(rows))]


def served(model: str, query: str) -> list[int]:
    """The tokens in which serve_rm.py has a reward model read a query."""
    proxy = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(model), max_length=512)
    tokens: list[int] = RewardModelProxy.tokenize_fn(proxy, [query], "cpu")["input_ids"][0].tolist()
    return tokens
