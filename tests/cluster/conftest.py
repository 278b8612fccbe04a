from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.benches import Benches, started
from tests.support.trainer_program import begin, ray_directory

__all__ = ["begin", "ray_directory"]


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    yield from started()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its vectors of 10 divide by neither 4 ranks nor a power of them."""
    path = tmp_path_factory.mktemp("model") / "model"
    shape = TinyModel(hidden_size=10, layers=2, heads=1, max_length=32)
    write_model(shape, "0123456789+=", path)
    return path
