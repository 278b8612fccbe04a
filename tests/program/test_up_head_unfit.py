"""Workers that wait for a head whose preflight fails: the whole programs, on one run directory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.run import unfit_head_note

TOKEN = "correct-horse-battery"


def start(run_dir: Path, **more: str) -> subprocess.Popen[str]:
    given = {"PATH": os.environ["PATH"], "ROLLCALL_RUN_DIR": str(run_dir), **more}
    return subprocess.Popen(
        [sys.executable, "-m", "entrypoint", "true"],
        env=given | {"ROLLCALL_RECIPE": "command"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("token", "waits"),
    [("", "waiting for the cluster's token"), (TOKEN, "waiting for the head at")],
)
def test_a_worker_that_waits_ends_as_soon_as_its_heads_checks_have_failed(
    tmp_path: Path, closed_port: int, token: str, waits: str
) -> None:
    worker = start(
        tmp_path,
        RAY_WORKER="1",
        ROLLCALL_HEAD_ADDRESS="127.0.0.1",
        ROLLCALL_CONTROL_PORT=str(closed_port),
        ROLLCALL_PREFLIGHT="off",
        ROLLCALL_TOKEN=token,
    )
    try:
        assert worker.stdout is not None
        assert any(waits in line for line in worker.stdout)
        with socket.create_server(("", 0)) as taken:
            port = str(taken.getsockname()[1])
            own = {"ROLLCALL_NODE_NAME": "h", "ROLLCALL_WORKER_PORTS": "11002-11999"}
            head = start(tmp_path, ROLLCALL_RAY_PORT=port, **own)
            said, _ = head.communicate(timeout=60)
        assert head.returncode == 75, said
        last, _ = worker.communicate(timeout=20)
        assert worker.returncode == 69, last
        (line,) = (line for line in last.splitlines() if "does not start" in line)
        assert "the head h does not start and has ended with 75: host.ports: " in line
        assert port in line
        assert "repair it, and start all nodes again" in line
        assert not RunFiles(tmp_path).token.exists()
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_worker_that_starts_before_the_repaired_head_waits_for_it(
    tmp_path: Path, closed_port: int, token: str
) -> None:
    """It tells what the head's last try met, and ends if the next one fails, too."""
    head = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": "h"})
    unfit_head_note.tell(head, 75, "host.ports: 6379 is taken")
    worker = start(
        tmp_path,
        RAY_WORKER="1",
        ROLLCALL_HEAD_ADDRESS="127.0.0.1",
        ROLLCALL_CONTROL_PORT=str(closed_port),
        ROLLCALL_PREFLIGHT="off",
        ROLLCALL_TOKEN=token,
    )
    try:
        assert worker.stdout is not None
        said = "before this node began: the head h does not start and has ended with 75: host.ports"
        assert any(said in line for line in worker.stdout)
        assert any("waiting for the " in line for line in worker.stdout)
        unfit_head_note.tell(head, 75, "host.ports: 8267 is taken")
        last, _ = worker.communicate(timeout=20)
        assert worker.returncode == 69, last
        assert "8267 is taken; repair it, and start all nodes again" in last
    finally:
        worker.kill()
        worker.wait()
