from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.benches import Benches, started


@pytest.fixture(scope="module")
def benches() -> Iterator[Benches]:
    yield from started()
