"""How the nodes of a demo end, also if the demo itself is killed.

`python -m entrypoint.commands.demo_nodes` is a process beside the demo. Its standard input says
which nodes there are. If it closes before the demo has said that they are over, it ends them.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from contract.files import private_dir
from contract.launch.programs import Program
from entrypoint.processes.process import end, find_marked, identity, kill
from entrypoint.processes.programs import program

STOP_SECONDS = 20.0
"""Time for a node to end after SIGTERM: a head that is killed tells no outcome."""
END_SECONDS = 5.0
"""Time for the process beside the demo to end, once the demo has said that all is over."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2)."""
OVER = "over"


@dataclass(frozen=True, slots=True)
class DemoNode:
    pid: int
    identity: str | None
    """Of the process, whose PID another may have later; None if it had ended at once."""
    mark: str
    """Of what it has started."""
    ray_home: str


class Keeper:
    """The demo's end of the process beside it."""

    def __init__(self, again: str) -> None:
        """`again`: the command that goes on with the demo."""
        self._popen = subprocess.Popen(
            program(Program.DEMO_NODES),
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._tell({"again": again})

    def learn(self, node: DemoNode) -> None:
        self._tell({"node": asdict(node)})

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        """All nodes have ended."""
        self._tell({OVER: True})
        with suppress(OSError):
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _tell(self, row: Mapping[str, Any]) -> None:
        assert self._popen.stdin is not None
        with suppress(OSError):  # somebody has killed it
            self._popen.stdin.write(f"{json.dumps(row)}\n")
            self._popen.stdin.flush()


def end_all(nodes: Iterable[DemoNode]) -> None:
    """Send SIGTERM to every node, then kill what is left."""
    known = list(nodes)
    running = []
    for node in known:
        if node.identity is not None and identity(node.pid) == node.identity:
            with suppress(psutil.Error):
                running.append(psutil.Process(node.pid))
    end(running, grace=STOP_SECONDS)
    for mark, ray_home in {(node.mark, node.ray_home) for node in known}:
        kill(of_node(mark))
        shutil.rmtree(ray_home, ignore_errors=True)
        shutil.rmtree(private_dir.of_node(mark), ignore_errors=True)


def of_node(mark: str) -> list[psutil.Process]:
    """Return the processes that a node of this mark has started."""
    return [*find_marked(mark), *find_marked(f"{mark}/service")]


def end_with_make() -> None:
    """Have SIGTERM end this process if it was started by `make`, and that is killed."""
    with suppress(psutil.Error, OSError):
        if psutil.Process(os.getppid()).name() in ("make", "gmake"):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def log_format() -> dict[str, str]:
    """Return ROLLCALL_LOG if it is set: it belongs to the terminal, not to another cluster."""
    return {name: os.environ[name] for name in ("ROLLCALL_LOG",) if name in os.environ}


def main() -> int:
    nodes: list[DemoNode] = []
    again = ""
    for line in sys.stdin:
        row = json.loads(line)
        if row.get(OVER):
            return 0
        again = row.get("again", again)
        if about := row.get("node"):
            nodes.append(DemoNode(**about))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    end_all(nodes)
    _say(again)
    return 0


def _say(again: str) -> None:
    from entrypoint import console  # nearly always for nothing
    from entrypoint.config.read import read_settings

    console.set_up(read_settings({**log_format(), "ROLLCALL_NODE_NAME": "demo"}))
    console.log.warning("the demo was killed, and its nodes are stopped. To go on: %s", again)


if __name__ == "__main__":
    sys.exit(main())
