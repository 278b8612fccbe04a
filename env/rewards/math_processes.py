"""The processes in which mathematics is compared: lent out, and replaced when one has ended."""

from __future__ import annotations

import atexit
import json
import os
import queue
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

CPU_SECONDS = 5.0
"""Of a process, for one label and one completion together."""
WALL_SECONDS = 120.0
"""Until a process counts as lost, however little CPU time it got."""
MEMORY_BYTES = 2 * 2**30
MOST_PROCESSES = 8
PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""Variables of the processes: secrets are not among them."""


class LostProcessError(Exception):
    """The process did not answer; the message says for how long."""


@dataclass(frozen=True, slots=True)
class Question:
    label: str
    answer: str
    places: int
    """Decimal places to which numbers are compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a process found out. None: it ended, at a limit, before it knew."""

    label: bool | None = None
    """Whether the label is mathematics."""
    read: bool | None = None
    """Whether the completion has an answer."""
    right: bool | None = None


class MathProcess:
    """One process; `compare` may be called by one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "env.rewards.math_worker", str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        self._pending = b""
        if self._line(time.monotonic() + WALL_SECONDS) is None:
            self.close()
            raise LostProcessError("a process for mathematics did not start; is math-verify there?")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def compare(self, question: Question) -> Comparison:
        """Return what is known when the process has answered or ended. Raises LostProcessError."""
        job = {**asdict(question), "seconds": CPU_SECONDS}
        deadline = time.monotonic() + WALL_SECONDS
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LostProcessError(f"a process for mathematics has ended: {error}") from error
        found: dict[str, Any] = {}
        while "right" not in found:
            line = self._line(deadline)
            if line is None:
                self._process.wait()
                break
            found |= line
        return Comparison(**found)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, deadline: float) -> Mapping[str, Any] | None:
        """Return the next line; None if the process has ended. Raises LostProcessError."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise LostProcessError(f"no verdict within {WALL_SECONDS:.0f} s")
                part = os.read(output, 65536)
                if not part:
                    return None
                self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        read: Mapping[str, Any] = json.loads(line)
        return read


class MathProcesses:
    """At most `size` processes, each started when there is work for it."""

    def __init__(self, size: int) -> None:
        self._free: queue.LifoQueue[MathProcess | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="mathematics")
        atexit.register(self.close)

    def compare(self, questions: Sequence[Question]) -> list[Comparison | LostProcessError]:
        """Return the comparison of each label with its answer, in order."""
        return list(self._threads.map(self._compare, questions))

    def _compare(self, question: Question) -> Comparison | LostProcessError:
        process = self._free.get()
        try:
            process = process if process is not None and process.alive else MathProcess()
            return process.compare(question)
        except LostProcessError as error:
            return error
        finally:
            self._free.put(process if process is not None and process.alive else None)

    def close(self) -> None:
        while not self._free.empty():
            if process := self._free.get_nowait():
                process.close()
