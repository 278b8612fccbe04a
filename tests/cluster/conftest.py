from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.benches import Benches, started
from tests.support.trainer_program import begin, ray_directory

__all__ = ["begin", "ray_directory"]


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    yield from started()
