"""What a machine cannot run is skipped with its reason, never silently."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from entrypoint.net import wait
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support import forked_workers
from tests.support.fork_server import forking_python
from tests.support.ports import closed_port, free_port, port_block

if TYPE_CHECKING:
    from tests.support.tiny_run import Tiny

__all__ = ["closed_port", "free_port", "port_block"]

# The same examples in every run, and no limit that a busy machine could break.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")

# Torch and its like make a million objects that stay: collections would only walk through them.
gc.disable()

# Tests start hundreds of processes; each would compile the source again without bytecode files.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


TESTS = Path(__file__).parent
OF_PYTEST = "PYTEST_CURRENT_TEST"
MARKED_FOLDERS = frozenset({"browser", "cluster", "gpu", "learning", "slurm", "vllm"})
"""All tests there have the mark of the folder's name, or `faults`. In tests/container some have
none: they read files, and start nothing."""


class Loggers(dict[str, Any]):
    """logging's registry, whose values are a list of the moment.

    pytest 9.2 walks through them at each phase of a test, without logging's lock. A thread that
    made a logger meanwhile ended the test with "dictionary changed size during iteration".
    """

    def values(self) -> Any:
        return list(super().values())


logging.root.manager.loggerDict = Loggers(logging.root.manager.loggerDict)

# Under nohup SIGHUP is ignored, after `&` in a script SIGINT. Nodes of tests would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class SessionFixtures:
    """A plugin, since hooks of this file are not called for what belongs to the session."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """What the session's fixtures tell libraries is for no test."""
        if fixturedef.scope != "session":
            return (yield)
        with environment_kept():
            return (yield)


@contextmanager
def environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys() - {OF_PYTEST}:
            del os.environ[name]
        os.environ.update({name: text for name, text in before.items() if name != OF_PYTEST})


@pytest.fixture(autouse=True, scope="module")
def environment_of_a_module() -> Iterator[None]:
    """As `environment_as_it_was`, for what the fixtures of a module do."""
    with environment_kept():
        yield


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """What a trainer in this process told its libraries (`LOCAL_RANK`) is not for the next test,
    nor for the processes that it starts."""
    with environment_kept():
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that sets its console up in this process takes the place of pytest's handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model and prompts for it. The import takes seconds: most tests need no trainer."""
    from tests.support.tiny_run import Tiny

    root = tmp_path_factory.mktemp("tiny")
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, "0123456789+=", root / "model")
    for name, rows in (("train", range(24)), ("eval", range(24, 28))):
        lines = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in rows]
        (root / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return Tiny(root / "model", root / "train.jsonl", root / "eval.jsonl")


@pytest.fixture(scope="session")
def forgetful(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model with dropout, so that training draws random numbers of its own."""
    model = tmp_path_factory.mktemp("forgetful") / "model"
    shutil.copytree(tiny.model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.3}))
    return replace(tiny, model=model)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts of a head."""
    monkeypatch.setattr(wait, "backoff", lambda failures, **_: 0.01 * failures)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SessionFixtures())


def pytest_collection_finish() -> None:
    """What the imports made stays: tests collect their own garbage alone."""
    gc.freeze()
    forking_python.OF_ALL_TESTS.update(os.environ)
    gc.enable()
    # Several processes compute at a time, and a loop of two threads ends with the slower one: on a
    # busy machine a test of seconds took a minute.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED_FOLDERS and not any(map(item.get_closest_marker, (folder, "faults"))):
            raise pytest.UsageError(f"{item.nodeid} would never run: it needs the mark {folder}")
        for level, missing in MISSING.items():
            if item.get_closest_marker(level) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))


def is_whole_default_level(config: pytest.Config) -> bool:
    whole = [Path(path).name for path in config.args] == ["tests"]
    return whole and config.option.markexpr == config.getini("addopts")[1]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders of marked levels, whose imports cost each process a second of a CPU.

    `pytest_collection_modifyitems` sees that none of their tests is of the default level.
    """
    is_level = collection_path.parent == TESTS and collection_path.name in MARKED_FOLDERS
    return True if is_level and is_whole_default_level(config) else None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three times as many processes as CPUs for the whole default level, most of whose time is
    waiting; one for a level with machines of its own, and for a few files, which would wait longer
    for the processes than run."""
    if not is_whole_default_level(config):
        return 0
    forked_workers.install()
    return min(6, 3 * (os.cpu_count() or 1))


def no_gpu() -> str | None:
    return None if shutil.which("nvidia-smi") or shutil.which("amd-smi") else "no GPU here"


def no_browser() -> str | None:
    return None if shutil.which("chromium") else "no chromium here: make hosts installs Debian's"


MISSING = {"gpu": no_gpu, "browser": no_browser}
