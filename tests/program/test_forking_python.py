"""The Python of the tests' nodes forks workers of Ray that are as if they had been started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from contract.files.child_variables import NODE_MARK
from contract.launch.rank_standing import SET_HERE
from tests.support.fork_server.forking_python import forking_python
from trainer.cluster.rank_imports import NVML_CHECK
from trainer.cluster.warm.shim import WORKER

pytestmark = pytest.mark.slow

TELL = """
import json, os, sys, psutil
from pathlib import Path
from contract.launch import warm
from ray._raylet import setproctitle
me = psutil.Process()
told = {
    "forked": "torch" in PRELOADED, "argv": sys.argv[1:], "input": sys.stdin.read(),
    "directory": os.getcwd(), "variables": dict(os.environ),
    "shown": me.environ(), "line": [word for word in me.cmdline() if word],
    "ancestor": warm.NAME in [one.name() for one in me.parents()],
}
setproctitle("ray::IDLE, for a long time")
setproctitle("ray::policy-0")
print(json.dumps({**told, "title": "".join(me.cmdline())}))
"""
ENDS = {"sys.exit(70)": 70, "os.kill(os.getpid(), 11)": -11, "os._exit(0)": 0}


def worker(directory: Path, program: str) -> list[str]:
    """The command line of a program that Ray starts as a worker."""
    path = directory / WORKER.removeprefix("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"import os, sys, time\nPRELOADED = set(sys.modules)\n{program}")
    return [forking_python(), str(path), "--an", "argument"]


def test_a_fork_sees_what_a_started_process_would_and_shows_it_to_others(tmp_path: Path) -> None:
    of_ray = {"RAY_CLIENT_MODE": "0", "RAY_JOB_ID": "7", "SPT_NOENV": "1"}
    own = {
        **of_ray,
        NVML_CHECK: "1",
        NODE_MARK: "a node",
        "HOSTNAME": "changed",
        "PWD": str(tmp_path),
    }
    env = {name: text for name, text in os.environ.items() if name != "USER"} | own
    command = worker(tmp_path, TELL)
    done = subprocess.run(
        command, env=env, cwd=tmp_path, input="told", capture_output=True, text=True, timeout=120
    )
    told = json.loads(done.stdout)
    assert told["forked"]
    assert told["argv"] == ["--an", "argument"]
    assert (told["directory"], told["input"]) == (str(tmp_path), "told")
    variables = {k: text for k, text in told["variables"].items() if k not in SET_HERE}
    assert variables == env
    assert told["shown"] | env == told["shown"]
    assert told["line"] == command
    assert told["title"] == "ray::policy-0"
    assert told["ancestor"]


@pytest.mark.parametrize("how", ENDS)
def test_the_shim_ends_as_its_fork_does(tmp_path: Path, how: str) -> None:
    assert subprocess.run(worker(tmp_path, how), timeout=120).returncode == ENDS[how]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_shim_ends_its_fork(tmp_path: Path, number: signal.Signals) -> None:
    program = "print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen(worker(tmp_path, program), stdout=subprocess.PIPE, text=True) as shim:
        assert shim.stdout is not None
        fork = psutil.Process(int(shim.stdout.readline()))
        assert fork.pid != shim.pid
        shim.send_signal(number)
        assert shim.wait(10) == -number
        fork.wait(10)


def test_all_else_becomes_a_python_of_the_same_environment(tmp_path: Path) -> None:
    told = "import os, sys, ray; print(os.getpid(), sys.executable, ray.__version__)"
    program = [forking_python(), "-c", told]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as python:
        assert python.stdout is not None
        pid, executable, _ = python.stdout.read().split()
    assert (int(pid), executable) == (python.pid, forking_python())
    assert executable != sys.executable
