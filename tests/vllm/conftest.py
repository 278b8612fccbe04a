from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def environment_of_no_engine() -> Iterator[None]:
    """vLLM preloads libraries into every process that is started after it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
