"""Forks ready processes: `python server.py LISTENER MODULE,MODULE… PADDING` imports the modules.

Each process has a keeper, a fork too, which passes on the shim's signals and tells the shim how the
process has ended. If its shim, its keeper or the server ends, the process is killed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

PADDING = "ROLLCALL_ROOM"
"""A variable, the last in the environment, whose text a fork overwrites with its own variables."""
READ_AT_IMPORT = (
    *("HF_", "HOME", "HUGGINGFACE_", "LD_", "PYTHONHASHSEED", "PYTHONPATH", "TMPDIR", "TORCH_"),
    *("TRANSFORMERS_", "XDG_"),
)
"""How names of variables begin with which a process is forked only if they are the server's."""
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""Options of prctl(2)."""
ARGUMENTS_AT = 48
"""The field of /proc/PID/stat with the address of the command line; the next field has its end."""


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    end_with_parent()
    for name in sys.argv[2].split(","):
        import_module(name)
    assert "ray._raylet" not in sys.modules, "it reads a worker's job when it is loaded"
    gc.collect()
    gc.freeze()  # else the first collection of every fork would copy it all
    call_itself("raylet")  # a node takes a process below a raylet for one of Ray's own
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        shim, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return keep(shim)
        shim.close()


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def call_itself(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def keep(shim: socket.socket) -> None:
    """Make the process that a shim asks for, and end after it. Returns in the process alone."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, (*files, file), _, _ = socket.recv_fds(shim, 1, 4)
    request = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    os.close(file)
    if unlike := differing(request["environ"]):
        print(f"not forked, as {', '.join(unlike)} may be read by an import", flush=True)
        os._exit(0)
    shim.sendall(b"y")
    pid = os.fork()
    if pid == 0:
        shim.close()
        return become(request, files)
    for file in files:
        os.close(file)
    process = os.pidfd_open(pid)
    while process not in select.select([process, shim.fileno()], [], [])[0]:
        with suppress(OSError):
            signal.pidfd_send_signal(process, (shim.recv(1) or bytes([signal.SIGKILL]))[0])
    with suppress(OSError):
        shim.sendall(str(os.waitpid(pid, 0)[1]).encode())
    os._exit(0)


def differing(environ: dict[str, str]) -> list[str]:
    """Names of variables that an import may have read, and that are not the server's."""
    given = {name: text for name, text in environ.items() if text}
    asked = {"PYTHONPATH": os.environ["PYTHONPATH"]} | given
    names = (name for name in {*os.environ, *asked} if name.startswith(READ_AT_IMPORT))
    return sorted(name for name in names if os.environ.get(name, "") != asked.get(name, ""))


def become(request: dict[str, Any], files: list[int]) -> None:
    """Run the program that the shim was started for; SystemExit passes."""
    end_with_parent()
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["directory"])
    environ: dict[str, str] = request["environ"]
    # Each that stays the same keeps its place in memory: libraries hold on to what they read.
    new = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    show_variables(new)
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(new)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    argv: list[str] = request["argv"]
    call_itself("python")
    show_arguments([sys.executable, *argv])
    if argv[0] == "-P":
        sys.argv = argv[2:]
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).parent))
        runpy.run_path(argv[0], run_name="__main__")


def show_variables(environ: dict[str, str]) -> None:
    """Write variables over the padding: who reads the whole environment takes the last of a name.

    The system shows the memory in which a process got its environment, and a fork has its parent's.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(PADDING.encode())
    size = len(PADDING) + 1 + len(os.environ[PADDING])
    pairs = (os.fsencode(f"{name}={value}") for name, value in environ.items())
    write(address - len(PADDING) - 1, size, b"\0".join(pairs))


def show_arguments(argv: list[str]) -> None:
    """Write `argv` over the command line, cut to the length of the server's."""
    # Ray finds the place of its titles as it sets the first, and for each it clears in it as much
    # as the last was long: this one fills it.
    import_module("ray._raylet").setproctitle("." * 2**16)
    _, _, fields = Path("/proc/self/stat").read_text().rpartition(")")
    begin, end = (int(field) for field in fields.split()[ARGUMENTS_AT - 3 :][:2])
    write(begin, end - begin, b"\0".join(map(os.fsencode, argv)))


def write(address: int, size: int, text: bytes) -> None:
    ctypes.memmove(address, text[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()
