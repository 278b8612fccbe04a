"""Runs a program that a policy wrote: limits on time, memory and processes, no network."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

LAUNCHER = Path(__file__).with_name("sandbox_child.py")
PATIENCE_SECONDS = 30.0
"""Beyond the program's own time, until the launcher itself counts as lost."""
OPEN_FILES = 64
PREFIX = "rollcall-code-"
"""How the names of the programs' directories begin."""
ABANDONED_SECONDS = 60.0
"""Least age of a directory that nobody holds to be removed: a new one is not held at once."""
PYTHONS = ("/usr/local/bin/python3", "/usr/bin/python3")
"""For the program if its user may not execute this process's interpreter, as below /root."""


class End(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    """Another exit status than 0, or a signal."""
    TIMED_OUT = "timed out"
    """The program used its CPU time, or its wall time."""


class SandboxError(Exception):
    """The program did not run, which is not its own fault; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    cpu_seconds: float = 5.0
    """CPU time of each process."""
    wall_seconds: float = 20.0
    memory_bytes: int = 2**30
    """Address space of each process."""
    processes: int = 16
    """Processes and threads at a time."""
    output_bytes: int = 2**20
    """Size of each file that is written; standard output is one."""
    written_bytes: int = 2**26
    """Size of all files together but standard output, which lie in memory."""

    @property
    def kernel(self) -> dict[str, int]:
        """Resource limits by their names."""
        return {
            "CPU": math.ceil(self.cpu_seconds),
            "AS": self.memory_bytes,
            "NPROC": self.processes,
            "FSIZE": self.output_bytes,
            "NOFILE": OPEN_FILES,
            "CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Run:
    end: End
    output: str
    namespaces: tuple[str, ...] = ()
    """The namespaces that the program had for itself."""


def run(program: str, stdin: str, limits: Limits) -> Run:
    """Run a Python program in an empty directory and a clean environment. Raises SandboxError."""
    try:
        _remove_abandoned()
        with _directory() as directory:
            (directory / "program.py").write_text(program, errors="replace")
            (directory / "stdin").write_text(stdin, errors="replace")
            for name in ("program.py", "stdin"):
                (directory / name).chmod(0o644)
            # Opened before: the program may put a pipe or a link in the place of its output.
            with (directory / "stdout").open("w+b") as output:
                answer = _launch(directory, limits)
                text = output.read(limits.output_bytes).decode(errors="replace")
            end = _end(answer["status"], timed_out=answer["timed_out"])
            return Run(end, text, tuple(answer["namespaces"]))
    except OSError as error:
        raise SandboxError(f"{error.filename}: {error.strerror}") from error


@contextmanager
def _directory() -> Iterator[Path]:
    """A temporary directory, held by a lock that the kernel frees if this process is killed."""
    made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    with made as at, _lock(Path(at)):
        yield Path(at)


@contextmanager
def _lock(directory: Path) -> Iterator[bool]:
    """Hold a directory, and say whether that was possible: another process may hold it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = True
    except OSError:
        is_held = False
    try:
        yield is_held
    finally:
        os.close(descriptor)


@cache
def _remove_abandoned() -> None:
    """Remove, once in this process, the directories that killed processes have left."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - directory.lstat().st_mtime < ABANDONED_SECONDS:
                continue
            with _lock(directory) as is_mine:
                if is_mine:
                    shutil.rmtree(directory, ignore_errors=True)


def _launch(directory: Path, limits: Limits) -> dict[str, Any]:
    job = {
        "pythons": [sys.executable, *PYTHONS],
        "arguments": ["-I", "-B", "program.py"],
        "directory": str(directory),
        "environment": {
            "PATH": os.defpath,
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        "limits": limits.kernel,
        "written_bytes": limits.written_bytes,
        "shown": sorted({sys.prefix, sys.base_prefix}),
        "wall_seconds": limits.wall_seconds,
    }
    launcher = subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    try:
        said, _ = launcher.communicate(
            json.dumps(job).encode(), timeout=limits.wall_seconds + PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise SandboxError(f"no end within {limits.wall_seconds + PATIENCE_SECONDS:g} s") from None
    finally:
        launcher.kill()
        launcher.wait()
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        raise SandboxError(f"the launcher ended with {launcher.returncode}") from None
    if "error" in answer:
        raise SandboxError(str(answer["error"]))
    return answer


def _end(status: int, *, timed_out: bool) -> End:
    if timed_out or status in (-24, -9):  # SIGXCPU, and SIGKILL when that is ignored
        return End.TIMED_OUT
    return End.FINISHED if status == 0 else End.FAILED
