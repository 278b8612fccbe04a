"""A node whose storage or temporary directory refuses a system call: the whole program."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from tests.support import failing_calls

FLOCK, BIND = f"flock={errno.ENOSYS}", f"bind={errno.EOPNOTSUPP}"


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path, since Ray puts sockets below it."""
    path = Path(tempfile.mkdtemp(prefix="rc-"))
    for name in ("run", "ray"):
        (path / name).mkdir()
    yield path
    shutil.rmtree(path)


def node(
    place: Path, below: str, calls: str, *words: str, preflight: str = "strict"
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    given = {
        "ROLLCALL_RUN_DIR": str(place / "run"),
        "ROLLCALL_RAY_TEMP_DIR": str(place / "ray"),
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_PREFLIGHT": preflight,
        "EXPECTED_WORKERS": "0",
    }
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", *words],
        env=kept | given | failing_calls.variables(place / below, calls=calls),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(
    ("below", "calls", "check", "remedy", "code"),
    [
        ("run", FLOCK, "host.run_dir", "-o flock", ExitCode.RUN_DIR),
        ("ray", BIND, "host.temp_dir", "ROLLCALL_RAY_TEMP_DIR", ExitCode.UNFIT),
    ],
)
def test_doctor_and_up_name_the_call_and_the_remedy(
    place: Path, below: str, calls: str, check: str, remedy: str, code: ExitCode
) -> None:
    checks = json.loads(node(place, below, calls, "doctor", "--json").stdout)["checks"]
    (found,) = [row for row in checks if row["name"] == check]
    assert found["verdict"] == "fail"
    assert remedy in found["remedy"]
    done = node(place, below, calls, "up", "true")
    assert done.returncode == code
    assert f"FAIL {check}" in done.stdout + done.stderr
    assert remedy in done.stdout + done.stderr


def test_without_preflight_the_run_directorys_refusal_ends_the_node_with_73(place: Path) -> None:
    done = node(place, "run", FLOCK, "up", "true", preflight="off")
    assert done.returncode == ExitCode.RUN_DIR
    assert "Function not implemented: put it on a file system that has this call" in done.stdout
