"""Starts, signals and reaps processes; no other module does."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO

import psutil

from contract.files.child_variables import NODE_MARK, NODE_OWNER
from contract.files.os_errors import with_path

log = logging.getLogger(__name__)

OPEN_FILES = 65536


class StartError(Exception):
    """A program could not be started; the sentence names the program and the reason."""

    def __init__(self, sentence: str, error: OSError | None = None) -> None:
        super().__init__(sentence)
        self.error = error


class Process:
    """A child process in a session of its own. Its output goes to a log file or to the console.

    The own session keeps a terminal's Ctrl-C from the child: the entrypoint alone decides the order
    in which processes stop.
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
                sentence = f"{name} cannot start: {argv[0]}: {error.strerror}"
                raise StartError(sentence, error) from None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; 128 + signal if a signal ended it."""
        code = self._popen.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code; None if the process still runs after `timeout` seconds."""
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
        """Send SIGTERM to the process, then SIGKILL to it and to its remaining descendants."""
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
        """The last lines of its output, without those of an earlier process with the same log."""
        if self.log_path is None:
            return ""
        with with_path(self.log_path), self.log_path.open("rb") as file:
            file.seek(self._log_start)
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def _open_log(path: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    if path is None:
        return nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def output(argv: Sequence[str], *, timeout: float) -> tuple[int, str]:
    """The exit code and the whole output of a short program.

    Raises StartError if there is no such program, or if it does not end within `timeout` seconds:
    then it is killed.
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


def raise_open_files_limit() -> None:
    """Raise the soft limit to OPEN_FILES, or to the hard limit if lower. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < best:
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))


def end(processes: Iterable[psutil.Process], *, grace: float) -> int:
    """Send SIGTERM, and SIGKILL after `grace` seconds. Return how many were alive at first."""
    alive = [process for process in processes if _lives(process)]
    for process in alive:
        _signal(process, signal.SIGTERM)
    _, stubborn = psutil.wait_procs(alive, timeout=grace)
    for process in stubborn:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=3)
    return len(alive)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to all of them, as if the machine lost its power."""
    for process in processes:
        _signal(process, signal.SIGKILL)


INNERMOST = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)
STARTED_AT = 22
"""Number of the field in /proc/PID/stat with the start, in ticks since the machine's boot."""


def identity(pid: int | str = "self") -> str | None:
    """A text that no other process of this machine has; None if the process has ended.

    It is the PID in the process's own PID namespace, and the start: PIDs are used again, and the
    first process of every container has PID 1.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    number, _, rest = stat.partition(" ")
    fields = rest.rpartition(")")[2].split()  # from the third on: a name may hold anything
    if fields[0] in "ZX":  # only its parent has not heard of its end
        return None
    if innermost := INNERMOST.search(status):  # some sandboxes tell nothing
        number = innermost[1]
    return f"{number}:{fields[STARTED_AT - 3]}"


def other_identities() -> dict[str, int]:
    """Identity to PID of every living process but this one."""
    mine = identity()
    found = ((identity(pid), pid) for pid in psutil.pids())
    return {name: pid for name, pid in found if name is not None and name != mine}


def marks(mark: str) -> dict[str, str]:
    """The variables in the environment of every process that this entrypoint starts."""
    return {NODE_MARK: mark, NODE_OWNER: identity() or ""}


def find_marked(mark: str, **variables: str) -> list[psutil.Process]:
    """This user's other processes that have the node's mark, and the `variables`, if given."""
    return [process for process, _ in _carriers(mark, variables)]


def find_ours_or_orphaned(mark: str, **variables: str) -> list[psutil.Process]:
    """The marked processes whose entrypoint is this one, or is gone: this node may end them."""
    found = list(_carriers(mark, variables))
    others = other_identities() if found else {}
    return [process for process, environ in found if environ.get(NODE_OWNER) not in others]


def other_owner(*node_marks: str) -> int | None:
    """The PID of another living entrypoint that owns processes with one of the marks."""
    found = [environ for mark in node_marks for _, environ in _carriers(mark, {})]
    others = other_identities() if found else {}
    owners = (others.get(environ.get(NODE_OWNER, "")) for environ in found)
    return next((pid for pid in owners if pid), None)


def entrypoints() -> set[int]:
    """The PIDs of this user's other living entrypoints that have started processes."""
    owners = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            owners.add(process.environ().get(NODE_OWNER, ""))
    others = other_identities() if owners else {}
    return {others[owner] for owner in owners if owner in others}


def of_living_nodes() -> set[int]:
    """The PIDs of this user's other living entrypoints, and of what these have started."""
    owners: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            owners[process.pid] = process.environ().get(NODE_OWNER, "")
    living = other_identities()
    started = {pid for pid, owner in owners.items() if owner in living}
    return started | {living[owners[pid]] for pid in started}


def named(name: str) -> list[psutil.Process]:
    """Return the machine's processes of that name, whoever has started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.name() == name and _lives(process):
                found.append(process)
    return found


def _carriers(
    mark: str, variables: Mapping[str, str]
) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Each process with the mark and the variables in its environment, and that environment."""
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
