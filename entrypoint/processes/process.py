"""The only place that starts, signals and reaps processes."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

import psutil

from contract.os_errors import named
from entrypoint.processes import identity

log = logging.getLogger(__name__)

NODE_MARK = "ROLLCALL_NODE_MARK"
"""Set in the environment of all that a node starts, inherited by what those start in turn: so a
node finds its own processes again, also after it was killed itself."""
NODE_OWNER = "ROLLCALL_NODE_OWNER"
"""Beside the mark: the entrypoint that the process belongs to. While that one lives, the process
works for it; afterwards it is left over, and the next entrypoint with this mark ends it."""


class StartError(Exception):
    """A program could not be started; the sentence says which and why."""


class Process:
    """A child in its own session, its output appended to a log file, or on this one's console.

    Its own session, because a terminal's Ctrl-C must reach the entrypoint alone: it decides the
    order in which things stop.
    """

    def __init__(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log_to: Path | None
    ):
        self.name = name
        self.log_path = log_to
        self._log_start = log_to.stat().st_size if log_to and log_to.exists() else 0
        with _open_log(log_to) as output:
            try:
                self._popen = subprocess.Popen(
                    argv,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"{name} cannot start: {argv[0]}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal where a signal ended it."""
        code = self._popen.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code; None where it still runs after `timeout` seconds."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return self.exit_code

    def on_exit(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with the exit code, from a thread, when the process ends."""

        def watch() -> None:
            self._popen.wait()
            tell(self.exit_code or 0)

        threading.Thread(target=watch, name=f"watch-{self.name}", daemon=True).start()

    def stop(self, grace: float = 10.0) -> None:
        """SIGTERM to the process, then SIGKILL to it and what is left of its descendants."""
        try:
            descendants = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            descendants = []
        if self.running:
            self._popen.terminate()
            self.wait(grace)
        if self.running:
            self._popen.kill()
        self._popen.wait()
        end(descendants, grace=1.0)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output; not those of an earlier process with the same log."""
        if self.log_path is None:
            return ""
        with named(self.log_path), self.log_path.open("rb") as file:
            file.seek(self._log_start)
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def _open_log(path: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    if path is None:
        return nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def output(argv: Sequence[str], *, timeout: float) -> tuple[int, str]:
    """Exit code and all that a short program prints; it is killed after `timeout` seconds.

    Raises StartError where there is no such program, or no end of it in time.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StartError(f"{argv[0]} did not end within {timeout:g} s") from None
    except OSError as error:
        raise StartError(f"{argv[0]} cannot start: {error.strerror}") from None
    return done.returncode, done.stdout.decode(errors="replace").strip()


def raise_open_files_limit(wanted: int = 65536) -> None:
    """The soft limit up to `wanted`, as far as the hard one allows; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < best:
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))


def end(processes: Iterable[psutil.Process], *, grace: float) -> int:
    """SIGTERM, then after `grace` seconds SIGKILL; return how many were still alive at first."""
    alive = [process for process in processes if _lives(process)]
    for process in alive:
        _signal(process, signal.SIGTERM)
    _, stubborn = psutil.wait_procs(alive, timeout=grace)
    for process in stubborn:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=3)
    return len(alive)


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to all of them, as a machine that loses its power would."""
    for process in processes:
        _signal(process, signal.SIGKILL)


def marks(mark: str) -> dict[str, str]:
    """What all that this entrypoint starts has in its environment."""
    return {NODE_MARK: mark, NODE_OWNER: identity.identity() or ""}


def marked(mark: str, **variables: str) -> list[psutil.Process]:
    """Every process of this user that carries the node's mark, this one left out; with
    `variables`, those that have them, too."""
    return [process for process, _ in _carriers(mark, variables)]


def ours(mark: str, **variables: str) -> list[psutil.Process]:
    """Those of them that belong to this entrypoint, or to one that is gone: its to end."""
    found = list(_carriers(mark, variables))
    others = identity.others() if found else {}
    return [process for process, environ in found if environ.get(NODE_OWNER) not in others]


def neighbour(*node_marks: str) -> int | None:
    """The number of another living entrypoint that processes with one of the marks belong to."""
    found = [environ for mark in node_marks for _, environ in _carriers(mark, {})]
    others = identity.others() if found else {}
    return next((pid for one in found if (pid := others.get(one.get(NODE_OWNER, "")))), None)


def _carriers(
    mark: str, variables: Mapping[str, str]
) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    wanted = {NODE_MARK: mark, **variables}.items()
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        if process.pid != os.getpid() and wanted <= environ.items():
            yield process, environ


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        log.warning("not allowed to end process %d", process.pid)
