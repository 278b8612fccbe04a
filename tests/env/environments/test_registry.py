"""From a text after `--environment` to environments: their trial leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from env.environments.registry import environment_factory
from tests.support.environments import HOLDING


@pytest.fixture
def holding(tmp_path: Path) -> Path:
    (tmp_path / "holding.py").write_text(HOLDING)
    return tmp_path / "holding.py"


def test_the_trial_of_an_environment_ends_its_process(holding: Path) -> None:
    before = set(psutil.Process().children())
    factory = environment_factory(f"{holding}:Holding", {})
    assert set(psutil.Process().children()) <= before
    environment = factory()
    (held,) = set(psutil.Process().children()) - before
    asyncio.run(environment.close())
    assert not held.is_running()


def test_the_trial_of_an_environment_is_closed_also_where_an_event_loop_runs(holding: Path) -> None:
    before = set(psutil.Process().children())

    async def in_a_notebook() -> None:
        environment_factory(f"{holding}:Holding", {})

    asyncio.run(in_a_notebook())
    assert set(psutil.Process().children()) <= before
