"""The fork server, for the nodes and for the Rays that tests start."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from entrypoint.config.read import read_settings
from entrypoint.processes.fork_server import client
from tests.support.repository import ROOT

FORK_SERVER = {"ROLLCALL_FORK_SERVER": "1", "ROLLCALL_STANDBY_RANKS": "0"}
"""Tests start hundreds of Ray workers on two cores, and each import takes 4 s of a core.

The default is off: a test of the default overrides this with DEFAULT.
"""
DEFAULT = {"ROLLCALL_FORK_SERVER": ""}
"""An empty variable counts as not set."""
TEST, PATH = "PYTEST_CURRENT_TEST", "PYTHONPATH"


@contextmanager
def forked_workers() -> Iterator[None]:
    """Ray nodes that are started inside take their workers from a fork server of this process."""
    python, before = sys.executable, {name: os.environ.get(name) for name in (TEST, PATH)}
    os.environ.pop(TEST, None)
    os.environ[PATH] = str(ROOT)
    sys.executable = python_of_workers()
    try:
        yield
    finally:
        sys.executable = python
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def with_forked_workers(module: str) -> list[str]:
    """The command that runs a package of this repository, whose own Ray forks its workers."""
    main = ROOT / module / "__main__.py"
    return [sys.executable, str(client.BESIDE / "ray_start.py"), python_of_workers(), str(main)]


def forkable(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a process is forked: those of the server, which are read at import.

    pytest changes one of them for each test.
    """
    return {name: value for name, value in environ.items() if name != TEST} | {PATH: str(ROOT)}


@cache
def python_of_workers() -> str:
    """The program that stands in for Python; the server lives as long as this process."""
    root = tempfile.mkdtemp(prefix="rollcall-fork-")
    settings = read_settings({"ROLLCALL_RUN_DIR": root, "TMPDIR": root, **FORK_SERVER}, [])
    server = client.ForkServer(settings, forkable(os.environ))
    server.__enter__()
    atexit.register(server.__exit__)
    return client.python(settings)
