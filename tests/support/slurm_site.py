"""A real Slurm on this machine: slurmctld, munge, and nodes with a network and a /tmp of their own.

Each node is a process in namespaces of its own, as a container is, so every node has an address, a
host name and all ports. Killing that process is what a loss of power is: nothing on the node lives
on. All of it ends with the process that started it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from entrypoint.commands.demo import inherited
from tests.support.repository import ROOT

SCRIPT = ROOT / "compose/slurm/rollcall.sbatch"
PREPARE = "make hosts"
SOURCES = Path(__file__).with_name("slurm")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "unshare", "nsenter", "setpriv")
CONTROLLER = "controller"
NODES = ("n1", "n2", "n3")
HOSTS = """127.0.0.1 localhost
10.77.0.254 controller
10.77.0.1 n1
10.77.0.2 n2
10.77.0.3 n3
"""
NAMESPACES = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
START_SECONDS = 60.0
RUN_SECONDS = 120.0
BEGIN_SECONDS = 90.0
CANCEL_SECONDS = 90.0
POLL_SECONDS = 0.2
NOT_OVER = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")


def missing() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    if os.geteuid() != 0:
        return "Slurm's nodes are started by root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}: {PREPARE}"
    allowed = subprocess.run(["unshare", "--net", *NAMESPACES, "true"], stderr=subprocess.DEVNULL)
    return None if allowed.returncode == 0 else "this machine allows no namespaces"


class SlurmSite:
    """A controller and three nodes; leaving the `with` block ends all their processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._machines: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for name in (CONTROLLER, *(f"{node}/spool" for node in NODES)):
            (self.root / name).mkdir(parents=True)
        (self.root / "hosts").write_text(HOSTS)
        conf = (SOURCES / "slurm.conf").read_text().replace("ROOT", str(self.root))
        (self.root / "slurm.conf").write_text(conf)
        key = self.root / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        try:
            self._start(CONTROLLER, "unshare", "--net")
            self.until(self._answers, "slurmctld", within=START_SECONDS)
            for name in NODES:
                self.power_on(name)
            self.until(self._all_idle, "nodes", within=START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*NODES, CONTROLLER):
            self.power_off(name)

    def power_on(self, node: str) -> None:
        self._start(node, *self._inside(), "nsenter", f"--net=/run/netns/{node}", "unshare")

    def power_off(self, node: str) -> None:
        """SIGKILL to process 1 of the machine, and so to all."""
        if machine := self._machines.pop(node, None):
            machine.kill()
            machine.wait(10)

    def reboot(self) -> None:
        """End all that runs on the nodes, and start them again."""
        for name in NODES:
            self.power_off(name)
        for name in NODES:
            self.power_on(name)
        self.until(self._all_idle, "nodes", within=START_SECONDS)

    def disk(self, node: str, path: str) -> Path:
        """What the node has at `path`, readable from here until the node's power is off."""
        return Path(f"/proc/{self._machines[node].pid}/root{path}")

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command on the controller's machine, in the directory that all nodes share."""
        return subprocess.run(
            [*self._inside(), *command],
            env=inherited() | {"SLURM_CONF": str(self.root / "slurm.conf")} | env,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    @contextmanager
    def running(self, *command: str) -> Iterator[None]:
        """A program beside the controller, which all nodes reach; it ends with the `with` block."""
        with (self.root / f"{Path(command[0]).name}.log").open("ab") as out:
            program = subprocess.Popen(
                [*DIES_WITH_US, *self._inside(), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            yield
        finally:
            program.kill()
            program.wait(10)

    def answer(self, *command: str, **env: str) -> str:
        """What a command prints; raises AssertionError if it fails."""
        done = self.run(*command, **env)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{self.logs()}"
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job, such as JobState, Restarts and ExitCode."""
        words = self.answer("scontrol", "show", "job", "--oneliner", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def is_over(self, number: str) -> bool:
        return self.job(number)["JobState"] not in NOT_OVER

    def cancel(self, number: str) -> None:
        """End a job, and wait until the nodes are free of it."""
        self.run("scancel", number)
        self.until(lambda: self.is_over(number), f"end of job {number}", within=CANCEL_SECONDS)

    def begin_now(self, number: str) -> None:
        """Spare a requeued job the two minutes that Slurm lets it wait; wait until it runs."""

        def runs() -> bool:
            # Slurm sets the time when the nodes are free of the job, whatever it was set to before.
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now")
            return self.job(number)["JobState"] == "RUNNING"

        self.until(runs, f"restart of job {number}", within=BEGIN_SECONDS)

    def logs(self) -> str:
        """The end of each program's log and of each job's, for the message of a failed test."""
        files = sorted([*self.root.glob("*.log"), *self.root.glob("*/*.log")])
        tails = {file: file.read_text(errors="replace").splitlines()[-30:] for file in files}
        return "\n".join(f"--- {file.name}\n" + "\n".join(tail) for file, tail in tails.items())

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        """Raises AssertionError if `done` is not true within so many seconds."""
        deadline = time.monotonic() + within
        while not done():
            assert time.monotonic() < deadline, f"no {what} in {within:.0f} s\n{self.logs()}"
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        return self.run("scontrol", "ping").returncode == 0

    def _all_idle(self) -> bool:
        lines = self.answer("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()
        return set(lines) == {f"{node} idle" for node in NODES}

    def _start(self, name: str, *how: str) -> None:
        script = SOURCES / ("controller.sh" if name == CONTROLLER else "node.sh")
        words = map(str, ("bash", script, self.root, name, ROOT))
        command = [*DIES_WITH_US, *how, *NAMESPACES, *words]
        with (self.root / name / "console.log").open("ab") as out:
            self._machines[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _inside(self) -> tuple[str, ...]:
        """The start of a command line that runs on the controller's machine."""
        pid = self._machines[CONTROLLER].pid
        where = ("--mount", "--uts", "--net", f"--wdns={self.root}")
        return ("nsenter", "--target", str(pid), *where)
