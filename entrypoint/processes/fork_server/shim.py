"""Stands in for Python in this node's Ray: it asks the node's fork server for a process.

The node writes this file to its private directory. The first line runs it with `-I -S`, so that it
starts in a few milliseconds. If the server forks the process, the shim forwards signals to the
process, and ends as the process ends. Otherwise, and for all programs except workers and drivers,
the shim becomes Python. It also becomes Python if a worker is killed while it starts, for example
by the kernel if memory runs out. Ray would wait for that worker until its register timeout.
"""

# ruff: noqa: PTH109, PTH118, PTH120 - pathlib takes as long to import as all the rest
from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from types import FrameType
from typing import NamedTuple, NoReturn

WORKER = "/ray/_private/workers/default_worker.py"
PROGRAM = ["-P", "-m", "trainer"]
REGISTER_TIMEOUT = "RAY_worker_register_timeout_seconds"
"""Ray kills a worker that has not registered after so many seconds; RAYS_DEFAULT if not set."""
RAYS_DEFAULT = "60"
START_SECONDS = 10.0
"""Within which a worker of Ray is surely known to its raylet."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
LENGTH = struct.Struct("!I")


def main() -> NoReturn:
    arguments = sys.argv[1:]
    if is_known(arguments) and (server := agreed(arguments)):
        end = stand_in(server)
        if not (is_worker(arguments) and end.is_kill_at_start):
            end_as(end.status)
    os.execv(sys.executable, [sys.executable, *arguments])


def is_known(arguments: list[str]) -> bool:
    """Whether a worker of Ray or the trainer's driver should start."""
    return arguments[:3] == PROGRAM or is_worker(arguments)


def is_worker(arguments: list[str]) -> bool:
    # the worker's program comes first, or after the program that sets it up
    return any(word.endswith(WORKER) for word in arguments[:2])


def patience() -> float:
    """Return the seconds to wait for a server that is still importing.

    The other half of Ray's register timeout is for the plain start that then follows.
    """
    return float(os.environ.get(REGISTER_TIMEOUT, RAYS_DEFAULT)) / 2


def agreed(arguments: list[str]) -> socket.socket | None:
    """Return a connection to the server that will fork this process; None without its consent."""
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "argv": arguments,
        "environ": dict(os.environ),
        "directory": os.getcwd(),
        "umask": umask,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }
    text = json.dumps(request).encode()
    server = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + patience()

    def wait_until_deadline() -> None:
        server.settimeout(max(0.001, deadline - time.monotonic()))

    try:
        wait_until_deadline()
        server.connect(os.path.join(os.path.dirname(__file__), "socket"))
        socket.send_fds(server, [LENGTH.pack(len(text))], [0, 1, 2])
        wait_until_deadline()
        server.sendall(text)
        wait_until_deadline()
        return server if server.recv(3) == b"yes" else None
    except OSError:
        return None


class End(NamedTuple):
    status: int | None
    """A wait status; None if nobody saw how the process ended."""
    seconds: float
    """After its start."""
    told: tuple[int, ...]
    """Signals that were passed on to it."""

    @property
    def is_kill_at_start(self) -> bool:
        """Whether the process was killed by somebody other than this shim."""
        killed = self.status in (signal.SIGKILL, None)
        return killed and not self.told and self.seconds < START_SECONDS


def stand_in(server: socket.socket) -> End:
    """Until the process that the server makes has ended."""
    began = time.monotonic()
    told: list[int] = []
    process: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if process:
            send(number)

    def send(number: int) -> None:
        try:
            signal.pidfd_send_signal(process[0], number)
        except ProcessLookupError:
            return

    def ended(status: int | None) -> End:
        return End(status, time.monotonic() - began, tuple(told))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    server.settimeout(None)
    try:
        server.sendall(b"go!")
        _, process[:], _, _ = socket.recv_fds(server, 3, 1)
    except OSError:
        return ended(None)
    if not process:
        return ended(None)
    for early in tuple(told):
        send(early)
    if status := server.recv(16):
        return ended(int(status))
    # the server has ended, so nobody can know how the process will end
    over = select.poll()
    over.register(process[0], select.POLLIN)
    over.poll()
    return ended(None)


def end_as(status: int | None) -> NoReturn:
    """In the way that this wait status tells."""
    if status is None:
        os._exit(1)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


if __name__ == "__main__":
    main()
