"""Real nodes on loopback, as `rollcall demo` lays them out; their job is node_cluster_job.py."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from contract.files import ray_home
from contract.launch.programs import Program
from entrypoint.commands.demo import PORTS, WORKERS, Layout, inherited
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.process import Process, find_marked, kill
from entrypoint.processes.programs import program
from tests.support.fork_server.forking_python import forking_python
from tests.support.watch import POLL_SECONDS, Watch

JOB = Path(__file__).with_name("node_cluster_job.py")
HEAD = 0
SPARE_PORTS = 100
DYING_SECONDS = 10.0
"""What was killed may take so long to die, where others have the CPUs."""


class Cluster(Watch):
    """A head and its workers; nodes are numbered, 0 is the head."""

    def __init__(
        self,
        root: Path,
        workers: int = WORKERS,
        job: Sequence[str] = (sys.executable, str(JOB)),
        **env: str,
    ) -> None:
        self._ports = PortBlock(PORTS)
        self.layout = Layout(root, self._ports.first)
        super().__init__(self.layout.run, self.consoles)
        self.run.root.mkdir(parents=True)
        common = {"ROLLCALL_RECIPE": "command", "EXPECTED_WORKERS": str(workers)}
        self.plain = False
        """Whether the nodes start processes as a user's do, and hold standby ranks: no forks."""
        self._env = {**common, **env}
        self._job = job
        self.own: dict[int, dict[str, str]] = {}
        """Variables of single nodes."""
        self.nodes: dict[int, Process] = {}

    @property
    def spare_ports(self) -> range:
        """Reserved with the nodes' ports, and used by no node of this cluster."""
        return range(self.layout.ports + PORTS - SPARE_PORTS, self.layout.ports + PORTS)

    def environment(self, number: int) -> dict[str, str]:
        own = self.own.get(number, {})
        standby = {"ROLLCALL_STANDBY_RANKS": "1" if self.plain else "0"}
        return inherited() | self.layout.node(number) | standby | self._env | own

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.nodes[number] = Process(
                f"node-{number}",
                self.command(number),
                env=self.environment(number),
                log_to=self.console(number),
            )

    def command(self, number: int) -> Sequence[str]:
        is_head = self.environment(number)["RAY_WORKER"] == "0"
        words = program(Program.ROLLCALL, "up", *(["--", *self._job] if is_head else []))
        return words if self.plain else (forking_python(), *words[1:])

    def close(self) -> None:
        for number, node in self.nodes.items():
            self.kill(number)
            node.wait(10)
            shutil.rmtree(self.ray_home(number), ignore_errors=True)
        self._ports.close()

    def ray_home(self, number: int) -> Path:
        """The node's own directory, in which Ray's lies."""
        return Path(self.environment(number)["ROLLCALL_RAY_TEMP_DIR"])

    def ray_dir(self, number: int) -> Path:
        return self.ray_home(number) / ray_home.NAME

    def console(self, number: int) -> Path:
        return self.layout.root / f"console-{number}.log"

    def said(self, number: int) -> str:
        """All that the node has written to its console."""
        return self.console(number).read_text()

    def processes(self, number: int) -> list[psutil.Process]:
        """What the node has started, and what that started in turn."""
        env = self.environment(number)
        mark = f"{env['ROLLCALL_NODE_NAME']}@{env['ROLLCALL_RAY_TEMP_DIR']}"
        return [p for part in ("", "/service", "/warm") for p in find_marked(mark + part)]

    def kill(self, number: int) -> None:
        """SIGKILL to everything on the node at once, as when its machine loses power."""
        entrypoint = self.nodes[number]
        kill([psutil.Process(entrypoint.pid)] if entrypoint.running else [])
        deadline = time.monotonic() + DYING_SECONDS
        while (found := self.processes(number)) and time.monotonic() < deadline:
            kill(found)  # again: one of them may have started another meanwhile
            time.sleep(POLL_SECONDS)
        entrypoint.wait(10)

    def terminate(self, number: int) -> None:
        psutil.Process(self.nodes[number].pid).send_signal(signal.SIGTERM)

    def named(self, number: int, word: str) -> list[psutil.Process]:
        """The node's processes whose command line has `word`, or a path that ends in it.

        A fork has its parent's command line until it becomes another program: it is left out. So
        is the shim that stands in for a fork of the tests' fork server.
        """
        lines = {process: command_line(process) for process in self.processes(number)}
        lines = {process: line for process, line in lines.items() if "-IS" not in line[1:2]}
        found = {
            process.pid: (process, line)
            for process, line in lines.items()
            if any(part == word or part.endswith(f"/{word}") for part in line)
        }

        def stays(process: psutil.Process, line: list[str]) -> bool:
            parent = parent_of(process)  # 0: it has ended since
            return parent != 0 and found.get(parent, (None, None))[1] != line

        return [process for process, line in found.values() if stays(process, line)]

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        """As a Watch does, but a head that has ended ends the wait at once."""
        head = self.nodes[HEAD]
        super().until(lambda: done() or not head.running, what, within=within)
        assert head.running or done(), (
            f"the head ended with {head.exit_code} before {what}\n{self.consoles()}"
        )

    def until_said(self, number: int, words: str, *, within: float) -> None:
        super().until(lambda: words in self.said(number), words, within=within)

    def exit_codes(self, *, within: float) -> dict[int, int]:
        """The exit code of every node, once all have ended."""
        nodes = self.nodes.values()
        super().until(
            lambda: not any(node.running for node in nodes), "end of all nodes", within=within
        )
        return {number: node.exit_code or 0 for number, node in self.nodes.items()}

    def left(self) -> list[str]:
        """Command lines of what still runs of any node; what was killed is given time to die."""
        deadline = time.monotonic() + DYING_SECONDS
        while left := [process for number in self.nodes for process in self.processes(number)]:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        return [" ".join(command_line(process)) for process in left]

    def ask(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command of the image, on the head's machine."""
        return subprocess.run(
            program(Program.ROLLCALL, *words),
            env=self.environment(HEAD) | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def consoles(self) -> str:
        """The end of every node's console, for the message of a failed test."""
        tails = (self.said(number).splitlines()[-25:] for number in sorted(self.nodes))
        return "\n".join(f"--- node {n}\n" + "\n".join(tail) for n, tail in enumerate(tails))


def signalled(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Each is sent the signal; one that has ended since it was looked up needs none."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def parent_of(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def result(cluster: Cluster) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(cluster.run.result.read_text())
    return row
