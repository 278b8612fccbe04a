"""A Python whose workers of Ray and trainers are forks of one process, which has imported for all.

Tests start hundreds of Ray workers on two cores, and each import takes 4 s of a core. The programs
that are tested know nothing of it: their `python` is a shim, which what they start inherits.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from contract.launch import warm
from contract.launch.programs import Program
from tests.support.repository import ROOT
from trainer.cluster import rank_imports
from trainer.cluster.warm import server, shim

PRELOADED = [*server.OF_RAY, *server.OF_DRIVER, *rank_imports.MODULES]
"""Not what imports Ray: its library reads a worker's job when it is loaded."""
OF_SERVER = {
    "PYTHONPATH": str(ROOT),
    "OPENBLAS_NUM_THREADS": "1",  # its threads start with the import
    "PYTHONUNBUFFERED": "1",
}
OF_DASHBOARD = f"""case "$1" in
  */ray/dashboard/dashboard.py) set -- -P -m {Program.RAY_DASHBOARD} "$@" ;;
esac
"""
"""Ray's dashboard runs as in a node of ours."""
OF_ALL_TESTS: dict[str, str] = {}
"""The environment before the first test. A test's own is no other's; empty: there are no tests."""
FIRST = {"SPT_NOENV": "1"}
"""Stays as it is in every fork: from the first variable Ray finds where titles go."""


@contextmanager
def forked_workers() -> Iterator[None]:
    """Ray nodes that are started inside fork their workers."""
    python, path = sys.executable, os.environ.get("PYTHONPATH")
    sys.executable, os.environ["PYTHONPATH"] = forking_python(), str(ROOT)
    try:
        yield
    finally:
        sys.executable = python
        del os.environ["PYTHONPATH"]
        if path is not None:
            os.environ["PYTHONPATH"] = path


@cache
def forking_python() -> str:
    """The program that stands in for Python; its server lives as long as this process."""
    home = Path(tempfile.mkdtemp(prefix="rollcall-fork-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    python = environment(home)
    padding = {warm.PADDING: "." * warm.PADDING_BYTES}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-P", "-m", Program.WARM, str(home), "." * warm.TITLE_BYTES],
            executable=sys.executable,  # a shell would change the order of the variables
            env=FIRST | (OF_ALL_TESTS or dict(os.environ)) | OF_SERVER | padding,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(process.kill)
    while server.READY not in (home / "log").read_text() and process.poll() is None:
        time.sleep(0.05)
    return python


def environment(home: Path) -> str:
    """Make a virtual environment like this one, but for `python` and `ray`; returns its Python."""
    ours = Path(sys.executable).parent
    (home / "bin").mkdir()
    (home / "pyvenv.cfg").symlink_to(ours.parent / "pyvenv.cfg")
    # With a link to all packages in place of this line, each compiled file would have another path.
    packages = sysconfig.get_path("purelib")
    site = home / Path(packages).relative_to(ours.parent)
    site.mkdir(parents=True)
    (site / "ours.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    for program in ours.iterdir():
        if not program.name.startswith("python") and program.name != "ray":
            (home / "bin" / program.name).symlink_to(program)
    python, ray = home / "bin/python", home / "bin/ray"
    stand_in = shlex.join([sys.executable, "-IS", shim.__file__, str(home), str(python)])
    python.write_text(f'#!/bin/sh\n{OF_DASHBOARD}exec {stand_in} "$@"\n')
    ray.write_text(f'#!/bin/sh\nexec {python} -P -m ray.scripts.scripts "$@"\n')
    for program in (python, ray):
        program.chmod(0o755)
    return str(python)
