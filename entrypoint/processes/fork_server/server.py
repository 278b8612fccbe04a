"""Forks ready processes.

`python -m entrypoint.processes.fork_server.server DIRECTORY PARENT MODULE` is one server.

It imports MODULE once and forks itself for each shim that asks. So the forks share memory, and the
disk is read once. If it has a thread or an open device, it does not serve: a fork could not use
them. It ends with the process PARENT.

The exchange with a shim: request and standard files → `yes` or `no, because …` → `go!` → pidfd of
the process → its wait status. If the shim ends, the server ends its process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from entrypoint.processes.fork_server import child, proc_view
from entrypoint.processes.fork_server.child import ForkTask
from entrypoint.processes.fork_server.protocol import NotForkableError, Request, forkable

DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dxg")
"""Open once CUDA or HIP is initialised; who only counts GPUs, by NVML, opens others."""
WHILE_IMPORTING = {
    "OPENBLAS_NUM_THREADS": "1",  # its threads start with the import
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch looks for a GPU without opening it
}
PR_SET_PDEATHSIG = 1
"""Option of prctl(2)."""
HEADER = struct.Struct("!I")
PEER = struct.Struct("3i")
MOST_BYTES = 2**20
PATIENCE_SECONDS = 5.0
"""Seconds for a connected shim to send its request."""

Callback = Callable[[], ForkTask | None]


def main() -> int:
    directory, parent, module = sys.argv[1:4]
    end_with(int(parent))
    listener = listen(Path(directory) / "socket")
    environ = {name: value for name, value in os.environ.items() if name != proc_view.PADDING}
    try:
        state = f"ready after {preload(module):.1f} s"
        check_fit()
    except Exception as error:  # of imported modules
        print(f"not serving: {type(error).__name__}: {error}", flush=True)
        os._exit(1)  # not even for the threads
    print(state, flush=True)
    child.become(Server(listener, environ, state).serve())
    return 0


def end_with(parent: int) -> None:
    """Let the kernel end this process when `parent` has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def listen(path: Path) -> socket.socket:
    """Before anything is imported: who connects waits, for no longer than a start would take."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(128)
    return listener


def preload(module: str) -> float:
    """Seconds that the import took."""
    began = time.monotonic()
    added = {name: value for name, value in WHILE_IMPORTING.items() if name not in os.environ}
    os.environ.update(added)
    importlib.import_module(module)
    for name in added:
        del os.environ[name]
    gc.collect()
    gc.freeze()  # else the first collection of every fork would copy it all
    return time.monotonic() - began


class UnfitError(Exception):
    """A fork of this process would not be as good as a start; the sentence says why."""


def check_fit() -> None:
    """Raises UnfitError."""
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        raise UnfitError(f"the import has started {threads - 1} threads")
    for file in Path("/proc/self/fd").iterdir():
        try:
            target = str(file.readlink())
        except OSError:
            continue
        if target.startswith(DEVICES):
            raise UnfitError(f"the import has opened {target}")


class Server:
    def __init__(self, listener: socket.socket, environ: dict[str, str], state: str) -> None:
        self._listener = listener
        self._environ = environ
        self._state = state
        self._selector = selectors.DefaultSelector()
        self._watch(listener, self._accept)

    def serve(self) -> ForkTask:
        """Returns in each child, with its task, and never in the server."""
        while True:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # its process and its shim ended at the same time
                act: Callback = key.data
                if (task := act()) is not None:
                    return task

    def _watch(self, file: socket.socket | int, act: Callback) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _accept(self) -> ForkTask | None:
        shim, _ = self._listener.accept()
        files: list[int] = []
        try:
            shim.settimeout(PATIENCE_SECONDS)
            text, files = received(shim)
            if not text:
                shim.sendall(self._state.encode())
                return None
            request = forkable(Request.read(text), self._environ, sys.executable)
            shim.sendall(b"yes")
            if shim.recv(3) == b"go!":
                return self._fork(request, shim, files)
        except NotForkableError as error:
            print(f"not forked: {error}", flush=True)
            shim.sendall(f"no, because {error}".encode())
        except (OSError, ValueError, KeyError) as error:
            print(f"not forked: {error or type(error).__name__}", flush=True)
        finally:
            for file in files:
                os.close(file)
        return None

    def _fork(self, request: Request, shim: socket.socket, files: list[int]) -> ForkTask | None:
        pid_of_shim, _, _ = PEER.unpack(
            shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        )
        pid = os.fork()
        if pid == 0:
            kept = tuple(map(os.dup, files))
            shim.close()
            self._close()
            return ForkTask(request, pid_of_shim, kept)
        process = os.pidfd_open(pid)
        self._watch(process, partial(self._ended, process, shim))
        self._watch(shim, partial(self._left, process, shim))
        try:
            socket.send_fds(shim, [b"pid"], [process])
        except OSError:
            self._left(process, shim)
        return None

    def _ended(self, process: int, shim: socket.socket) -> None:
        """The process has: tell its shim how."""
        found = os.waitid(os.P_PIDFD, process, os.WEXITED)
        assert found is not None
        signalled = found.si_code != os.CLD_EXITED
        status = found.si_status if signalled else found.si_status << 8
        self._selector.unregister(process)
        os.close(process)
        if shim in self._selector.get_map():
            self._selector.unregister(shim)
        with suppress(OSError):
            shim.sendall(str(status).encode())
        shim.close()

    def _left(self, process: int, shim: socket.socket) -> None:
        """The shim has ended: nobody waits for the process."""
        self._selector.unregister(shim)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)

    def _close(self) -> None:
        """In a child: what it has of the server's would keep others waiting."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()


def received(shim: socket.socket) -> tuple[bytes, list[int]]:
    """A request's text, and the standard files that came with it. Raises OSError, ValueError."""
    header, files, _, _ = socket.recv_fds(shim, HEADER.size, 3)
    (size,) = HEADER.unpack(header.ljust(HEADER.size, b"\0"))
    if size > MOST_BYTES:
        raise ValueError(f"a request of {size} bytes")
    text = b""
    while len(text) < size:
        part = shim.recv(size - len(text))
        if not part:
            raise ValueError("a request that broke off")
        text += part
    return text, files


if __name__ == "__main__":
    sys.exit(main())
