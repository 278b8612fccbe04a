from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from trainer.rollout import vllm_engine

CACHE_BYTES = 64 << 20
"""An engine in the process of a test holds its cache until the process ends."""


@pytest.fixture(scope="module", autouse=True)
def environment_of_no_engine() -> Iterator[None]:
    """vLLM preloads libraries into every process that is started after it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "CPU_CACHE_BYTES", CACHE_BYTES)
