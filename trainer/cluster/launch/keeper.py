"""Starts the ranks of one node, and ends them: `python -m trainer.cluster.launch.keeper`.

The node's agent talks to it over standard input: first a line of JSON, then the words `stop`
(SIGTERM to each rank, also behind a launcher that only waits for it) and `end` (SIGTERM, then
SIGKILL). If the input closes, the agent is gone, and the keeper kills everything at once. It adopts
what its ranks have started, so that nothing of them remains. Standard output has a line of JSON for
each rank that has ended.

The next keeper of the node waits until this one has ended: then no rank holds GPU memory any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_SECONDS = 0.1
END_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for the ranks that another rank's failure ends."""
LOCK_SECONDS = 60.0
"""How long to wait for the ranks of an earlier attempt to be gone."""
NOT_STARTED = 127
LIBC = ctypes.CDLL(None, use_errno=True)


class Keeper:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._numbers: dict[int, int] = {}
        """Process id → number of the rank process, of those that run."""
        self._only_wait: set[int] = set()
        """Ids of launchers that start a rank and wait for it."""
        self._kill_at: float | None = None

    def run(self) -> None:
        for number, (argv, env, output, only_waits) in enumerate(self._spec["processes"]):
            pid = self._start(number, argv, env, output)
            if only_waits and pid is not None:
                self._only_wait.add(pid)
        while self._numbers:
            self._hear()
            self._reap()
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._signal(signal.SIGKILL)
        self._kill_rest()

    def _start(self, number: int, argv: list[str], env: dict[str, str], output: int) -> int | None:
        """Return the id of the process; None if it cannot start."""
        try:
            started = subprocess.Popen(
                argv,
                env=env,
                cwd=self._spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            reason = f"{error.filename or argv[0]}: {error.strerror}\n"
            os.write(output, f"it cannot start: {reason}".encode())
            _tell(number, NOT_STARTED)
            return None
        self._numbers[started.pid] = number
        started.returncode = 0  # `_reap` waits for it, not subprocess
        return started.pid

    def _hear(self) -> None:
        if not select.select([0], [], [], TICK_SECONDS)[0]:
            return
        match _line():
            case b"stop\n":
                self._signal(signal.SIGTERM)
            case b"end\n":
                self._signal(signal.SIGTERM)
                self._kill_at = time.monotonic() + END_SECONDS
            case _:
                self._kill_at = 0.0
                self._signal(signal.SIGKILL)
                time.sleep(TICK_SECONDS)

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if (number := self._numbers.pop(pid, None)) is not None:
                _tell(number, os.waitstatus_to_exitcode(status))

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._numbers:  # not reaped yet, so that the number is still its own
            asks = number is signal.SIGTERM and pid in self._only_wait
            if not (asks and _ask_children(pid)):
                os.kill(pid, number)

    def _kill_rest(self) -> None:
        """Kill what the ranks have left: servers, launchers' ranks, loaders of data."""
        while left := psutil.Process().children(recursive=True):
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=1.0)


def _ask_children(pid: int) -> bool:
    """Send SIGTERM to the children of a process; return whether there is one."""
    asked = False
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                child.terminate()
                asked = True
    return asked


def _tell(number: int, code: int) -> None:
    """`code`: negative for a signal, as subprocess has it."""
    os.write(1, json.dumps({"process": number, "code": code}).encode() + b"\n")


def _line() -> bytes:
    """Return the next line of standard input; without its end if the input has closed."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _alone(directory: str | None) -> Iterator[bool]:
    """Hold the lock of the node's directory; yields False if another keeper does not give it up.

    None: the node has no directory, and two keepers do not know each other.
    """
    if directory is None:
        yield True
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # closed in the ranks
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if select.select([0], [], [], TICK_SECONDS)[0]:  # asked to end already
            return False
    return False


def _refuse(outputs: Sequence[int]) -> None:
    for number, output in enumerate(outputs):
        os.write(output, b"the ranks of an earlier attempt still run on this node\n")
        _tell(number, NOT_STARTED)


def main() -> int:
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A handler, unlike an ignored signal, is not inherited by the ranks.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    spec = json.loads(_line())
    with _alone(spec["directory_of_node"]) as alone:
        if alone:
            Keeper(spec).run()
        else:
            _refuse([output for _, _, output, _ in spec["processes"]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
