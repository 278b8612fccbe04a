"""The one place that calls podman."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entrypoint.processes.programs import beside_interpreter
from tests.support.repository import ROOT

CONFIGURATION = ROOT / "tests/container/host/containers.conf"
PREPARE = "python3 tests/container/host/prepare.py"
IMAGE = os.environ.get("TEST_IMAGE", "localhost/rollcall:cpu")

OF_THE_IMAGE = (1000, 1000)
HARDENED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
"""A container with nothing but volumes to write to, and with no right."""
"""The image's user and group, who must be allowed to write to a run directory."""


def podman(
    *words: str | Path, within: float = 60, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Raises AssertionError, with what podman says, where it fails or takes too long."""
    command = ["podman", *map(str, words)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "CONTAINERS_CONF": str(CONFIGURATION)},
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
            cwd=tempfile.gettempdir(),  # conmon leaves a file `oom` where memory runs out
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{' '.join(command)} takes more than {within:.0f} s") from None
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ends with {done.returncode}: {done.stderr}")
    return done


def missing() -> str | None:
    """Why no container can be started here; None where one can."""
    if os.geteuid() != 0:
        return "containers are started by root"
    if shutil.which("podman") is None:
        return f"no podman here: {PREPARE}"
    if podman("image", "exists", IMAGE, check=False).returncode != 0:
        return f"{IMAGE} is not built: {PREPARE}"
    return None


def compose_program() -> str | None:
    """The path of podman-compose; None where there is none."""
    return shutil.which(beside_interpreter("podman-compose"))


def inspect(image: str) -> dict[str, Any]:
    (row,) = json.loads(podman("image", "inspect", image).stdout)
    assert isinstance(row, dict)
    return row


def run_once(*words: str | Path, within: float = 60) -> subprocess.CompletedProcess[str]:
    """A container from its start to its end; `words` are options, the image and its arguments."""
    # podman runs health checks by systemd timers, and complains where there is no systemd.
    return podman("run", "--rm", "--no-healthcheck", *words, within=within, check=False)


@dataclass(frozen=True, slots=True)
class Container:
    """A container that has been started; it may have ended since."""

    id: str
    name: str

    @classmethod
    def start(cls, name: str, *words: str | Path) -> Container:
        """`words` are options, the image and its arguments."""
        options = ("run", "--detach", "--no-healthcheck", f"--name={name}")
        return cls(podman(*options, *words).stdout.strip(), name)

    @property
    def running(self) -> bool:
        state = podman("inspect", "--format={{.State.Running}}", self.id).stdout
        return state.strip() == "true"

    @property
    def said(self) -> str:
        """All that it has written to its console."""
        done = podman("logs", self.id)
        return done.stdout + done.stderr

    def exit_code(self, *, within: float) -> int:
        return int(podman("wait", self.id, within=within).stdout)

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.id, *command, check=False)

    def kill(self) -> None:
        """SIGKILL to process 1, and so to all: as when the machine loses power."""
        podman("kill", self.id)
        podman("wait", self.id)

    def start_again(self) -> None:
        podman("start", self.id)

    def stop(self, *, grace: float) -> None:
        """The image's stop signal, as any platform sends it."""
        podman("stop", f"--time={grace:.0f}", self.id, within=grace + 30)

    def pids(self, word: str) -> list[int]:
        """The host's ids of the processes whose command line has `word`."""
        rows = podman("top", self.id, "hpid", "args").stdout.splitlines()[1:]
        return [int(row.split()[0]) for row in rows if word in row]

    def remove(self) -> None:
        podman("rm", "--force", "--time=0", self.id, check=False)
