"""ROLLCALL_LOG=json: each line of a node's console is one JSON object, also on a terminal."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from contract.redaction import MASK
from tests.support.ports import BLOCK_PORTS
from tests.support.terminal import in_terminal, read_to_end
from tests.support.waiting_worker import environment

SECRET = "9f86d081884c7d659a2feaa0c55ad015"
LINK = "http://h:8267/?read=rollcall-read-0123"
SPEAKS = f"""
import logging, os
from pathlib import Path
from entrypoint import console
from entrypoint.config.read import read_settings
from entrypoint.run.journal import Journal
from contract.progress import Progress

settings = read_settings(os.environ)
console.set_up(settings)
journal = Journal(settings.run_dir / "journal.jsonl", "n1", secrets=settings.secrets)
journal.attempt = 2
journal.record("failure", "gpu_fault: it said {SECRET}", failure="gpu_fault", said="{SECRET}")
line = console.ProgressLine()
for step in (1, 2):
    line.show(Progress(step=step, total_steps=2))
try:
    raise ValueError("two\\nlines with {SECRET}")
except ValueError:
    logging.exception("broken")
console.log_to_file(settings, is_head=True)
logging.info("in the file, too: %s", "{LINK}")
"""


def rows(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def test_events_progress_and_errors_are_one_object_a_line_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    given = {
        "PATH": os.environ["PATH"],
        "ROLLCALL_LOG": "json",
        "ROLLCALL_NODE_NAME": "n1",
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "MY_API_KEY": SECRET,
    }
    with in_terminal([sys.executable, "-c", SPEAKS], given) as (node, terminal):
        said = read_to_end(terminal)
        assert node.wait(20) == 0, said
    failure, first, last, error, info = rows(said)
    assert SECRET not in said
    assert failure["level"] == "WARNING"
    assert failure["node"] == "n1"
    assert failure["event"] == "failure"
    assert failure["attempt"] == 2
    assert failure["details"] == {"failure": "gpu_fault", "said": "********"}
    assert failure["message"] == "gpu_fault: it said ********"
    assert datetime.fromisoformat(failure["time"]).tzinfo is not None
    assert (first["event"], first["details"]["step"]) == ("progress", 1)
    assert (last["event"], last["details"]["step"]) == ("progress", 2)
    assert error["error"].startswith("Traceback")
    assert "two\nlines with ********" in error["error"]
    assert "event" not in info
    (in_file,) = (tmp_path / "logs" / "head.log").read_text().splitlines()
    assert in_file.endswith(f" n1 in the file, too: http://h:8267/?read={MASK}")
    assert info["message"] == f"in the file, too: {LINK}"  # only the console shows the key


def test_a_node_that_does_not_start_says_why_in_json_on_a_terminal_too(
    tmp_path: Path, port_block: int
) -> None:
    with socket.create_server(("", 0)) as taken:
        given = {
            **environment(tmp_path),
            "RAY_WORKER": "0",
            "ROLLCALL_LOG": "json",
            "ROLLCALL_PREFLIGHT": "strict",
            "ROLLCALL_WORKER_PORTS": f"{port_block}-{port_block + BLOCK_PORTS - 1}",
            "ROLLCALL_RAY_PORT": str(taken.getsockname()[1]),
            "ROLLCALL_RECIPE": "command",
        }
        argv = [sys.executable, "-m", "entrypoint", "true"]
        with in_terminal(argv, given) as (node, terminal):
            said = read_to_end(terminal)
            assert node.wait(20) == 75, said
    assert any("host.ports" in row["message"] for row in rows(said))
    assert rows(said)[-1]["level"] == "ERROR"
    assert "this node does not start" in rows(said)[-1]["message"]
