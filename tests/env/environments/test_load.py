"""From a text after `--environment` to environments: their trial leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import psutil
import pytest

from env.environments import load, registry
from env.environments.load import EnvironmentSpecError, environment_factory, trial
from env.episodes import episode
from env.episodes.environment import Environment
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


def test_the_trial_of_an_environment_that_does_not_close_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(episode, "CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(load, "CLOSE_SECONDS", -0.9)
    ends, ended = threading.Event(), threading.Event()

    class Open(Environment):
        async def close(self) -> None:
            await asyncio.to_thread(ends.wait)
            ended.set()

    with trial(Open):
        pass
    assert not ended.is_set()
    ends.set()


def test_an_environment_that_would_end_the_program_is_refused(tmp_path: Path) -> None:
    source = HOLDING.replace("self.held =", "sys.exit(0); self.held =")
    (tmp_path / "ending.py").write_text(source)
    with pytest.raises(EnvironmentSpecError, match="cannot be made: SystemExit: 0"):
        environment_factory(f"{tmp_path}/ending.py:Holding", {})


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "class One(Environment):\n    async def steps(self, reply): ...",
            r"has a method `steps` and no `step` \(.*one.py:3\)",
        ),
        (
            "class One(Environment):\n    async def clsoe(self): ...",
            r"has a method `clsoe` and no `close` \(.*one.py:3\)",
        ),
        (
            "class One(Environment):\n    stop = ('=',)",
            r"has an attribute `stop` and no `stops` \(.*one.py:2\)",
        ),
        (
            "one = Environment()\ndef One(): return one",
            r"the factory gives the same object twice \(.*one.py:3\). Make a new one in each call",
        ),
        (
            "def mul(a, b: int):\n    '''Multiply.\n\n    Args:\n        b: Times.\n    '''\n"
            "class One(ToolEnv):\n    def __init__(self): super().__init__([mul])",
            r"mul has no type hint for a and no description of a below `Args:` .*\(.*one.py:2\)",
        ),
        (
            "class One:\n    def reset(self): ...\n    async def step(self, reply): ...",
            "makes no environment, but One. Wanted is a subclass of rollcall.Environment",
        ),
        (
            "class One(ToolEnv):\n    def __init__(self): super().__init__(print)",
            r"takes a list of functions, also of one \(.*one.py:3\)",
        ),
    ],
)
def test_a_class_that_is_nearly_an_environment_is_told_what_it_lacks(
    tmp_path: Path, source: str, told: str
) -> None:
    (tmp_path / "one.py").write_text(f"from rollcall import Environment, ToolEnv\n{source}\n")
    with pytest.raises(EnvironmentSpecError, match=told):
        environment_factory(f"{tmp_path}/one.py:One", {})


def test_each_registered_name_makes_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLCALL_RETRIEVER_URL", "http://127.0.0.1:1")
    for name in registry.ENVIRONMENTS:
        with trial(environment_factory(name, {})) as made:
            assert isinstance(made, Environment), name
