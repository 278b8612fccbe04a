from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracles.process import Peers


@pytest.fixture(scope="session")
def peers() -> Iterator[Peers]:
    process = Peers()
    yield process
    process.close()
