"""What Ray on this node takes for Python: it asks the node's fork server for a process.

The node writes this file where Ray finds it, with a first line that runs it with `-I -S`, so that
it starts in a few milliseconds. Where the server makes the process that is asked for, this one
stands in for it to the end: it passes signals on, and ends as the process has ended. In every other
case, and for everything that Ray starts beside workers and drivers, it becomes Python.
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
from types import FrameType
from typing import NoReturn

WORKER = "/ray/_private/workers/default_worker.py"
PROGRAM = ["-m", "trainer"]
PATIENCE_SECONDS = 30.0
"""For a server that is still importing: so long would a plain start take on a slow disk, too."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
LENGTH = struct.Struct("!I")


def main() -> NoReturn:
    arguments = sys.argv[1:]
    server = agreed(arguments) if is_known(arguments) else None
    if server is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    end_as(stand_in(server))


def is_known(arguments: list[str]) -> bool:
    """Whether a worker of Ray, or the trainer's driver, is to start."""
    # A worker's program comes first, or after the one that sets it up.
    return arguments[:2] == PROGRAM or any(word.endswith(WORKER) for word in arguments[:2])


def agreed(arguments: list[str]) -> socket.socket | None:
    """A connection to the server, which would make this process; None where it would not."""
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
    try:
        server.settimeout(PATIENCE_SECONDS)
        server.connect(os.path.join(os.path.dirname(__file__), "socket"))
        socket.send_fds(server, [LENGTH.pack(len(text))], [0, 1, 2])
        server.sendall(text)
        return server if server.recv(3) == b"yes" else None
    except OSError:
        return None


def stand_in(server: socket.socket) -> int:
    """Until the process that the server makes has ended. Returns its wait status."""
    process: list[int] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not process:
            early.append(number)
            return
        try:
            signal.pidfd_send_signal(process[0], number)
        except ProcessLookupError:
            return

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    server.settimeout(None)
    server.sendall(b"go!")
    _, process[:], _, _ = socket.recv_fds(server, 3, 1)
    if not process:
        return 1 << 8
    for known in early:
        pass_on(known, None)
    if status := server.recv(16):
        return int(status)
    # The server has ended, and nobody knows any more how the process will.
    over = select.poll()
    over.register(process[0], select.POLLIN)
    over.poll()
    return 1 << 8


def end_as(status: int) -> NoReturn:
    """In the way that this wait status tells."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


if __name__ == "__main__":
    main()
