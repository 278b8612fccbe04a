"""A Python whose workers of Ray and trainers are forks of one process, which has imported for all.

Tests start hundreds of Ray workers on two cores, and each import takes 4 s of a core. The programs
that are tested know nothing of it: their `python` is a shim, which what they start inherits.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.fork_server import server, shim
from tests.support.repository import ROOT

PRELOADED = [
    *("aiohttp", "google.protobuf.json_format", "jsonschema", "msgpack", "psutil", "requests"),
    *("uvloop", "yaml", "trainer.models.hub", "trainer.rollout.prompts"),
    *("trainer.workers.policy", "trainer.workers.critic", "trainer.workers.reference"),
    *("trainer.workers.ddp", "trainer.workers.reward", "trainer.rollout.hf_engine.engine"),
    *(
        "trainer.checkpoint.replica_store",
        "trainer.checkpoint.writer",
        "trainer.cluster.rendezvous",
    ),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2", "qwen3")),
]
"""Not what imports Ray: its library reads a worker's job when it is loaded."""
OF_SERVER = {
    "PYTHONPATH": str(ROOT),
    "OPENBLAS_NUM_THREADS": "1",  # its threads start with the import
    "PYTHONUNBUFFERED": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch looks for a GPU without opening it
}
FIRST = {"SPT_NOENV": "1"}
"""Stays as it is in every fork: from the first variable Ray finds where titles go."""
ROOM_BYTES, TITLE_BYTES = 2**14, 2**12
"""For the variables and for the command line that the system shows of a fork."""


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
    with socket.socket(socket.AF_UNIX) as listener, (home / "log").open("wb") as log:
        listener.bind(str(home / "socket"))
        listener.listen(128)
        arguments = (str(listener.fileno()), ",".join(PRELOADED), "." * TITLE_BYTES)
        process = subprocess.Popen(
            [python, "-P", server.__file__, *arguments],
            env=FIRST | dict(os.environ) | OF_SERVER | {server.PADDING: "." * ROOM_BYTES},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(process.kill)
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
    python.write_text(f"#!{sys.executable} -IS\n{Path(shim.__file__).read_text()}")
    ray.write_text(f'#!/bin/sh\nexec {python} -P -m ray.scripts.scripts "$@"\n')
    for program in (python, ray):
        program.chmod(0o755)
    return str(python)
