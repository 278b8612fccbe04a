"""OpenRLHF's own mix of data sets."""

from __future__ import annotations

from types import SimpleNamespace

from absent import empty_modules

PACKAGES = ("deepspeed", "flash_attn", "peft", "pylatexenc", "torchdata", "vllm")

with empty_modules(*PACKAGES):
    from openrlhf.datasets.utils import blending_datasets


def blended(datasets: str, shares: str | None, seed: int, most: int) -> list[str]:
    """The texts of the rows as its trainer has them before it shuffles."""
    strategy = SimpleNamespace(
        args=SimpleNamespace(use_ms=False), print=lambda *_: None, is_rank_0=lambda: False
    )
    rows = blending_datasets(datasets, shares, strategy, seed, max_count=most)
    texts: list[str] = rows.select(range(min(most, len(rows))))["input"][:]
    return list(texts)
