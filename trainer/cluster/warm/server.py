"""Forks ready processes: `python -m trainer.cluster.warm.server HOME PADDING` imports for all.

Each process has a keeper, a fork too, which passes on the shim's signals and tells the shim how the
process has ended. If its shim or its keeper ends, the process is killed. They outlive the server.

It imports nothing of Ray's library, which reads a worker's job when it is loaded.
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
import struct
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from contract.launch import rank_standing, warm
from trainer.cluster import rank_imports

OF_RAY = (
    *("aiohttp", "google.protobuf.json_format", "jsonschema", "msgpack", "psutil", "requests"),
    *("uvloop", "yaml"),
)
"""What Ray itself imports in each worker."""
OF_DRIVER = ("trainer.models.hub", "trainer.rollout.prompts")
READ_AT_IMPORT = (
    *("ACCELERATE_", "DS_", "HF_", "HOME", "HUGGINGFACE_", "LD_", "PYTHONHASHSEED", "PYTHONPATH"),
    *("PYTORCH_", "TMPDIR", "TORCH_", "TRANSFORMERS_", "USE_", "XDG_"),
)
"""How names of variables begin with which a process is forked only if they are the server's."""
READY = "all is imported"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""Options of prctl(2)."""
ARGUMENTS_AT = 48
"""The field of /proc/PID/stat with the address of the command line; the next field has its end."""


def main() -> None:
    set_end_with_parent(signal.SIGKILL)
    call_itself(warm.NAME)
    # With it, torch would start a thread here that no fork has.
    os.environ.pop(rank_standing.MARK, None)
    # From here on shims wait for an answer, rather than import for themselves.
    listener = listening(warm.socket(Path(sys.argv[1])))
    for name in (*OF_RAY, *OF_DRIVER):
        with suppress(ImportError):  # a fork that needs it says so
            import_module(name)
    rank_imports.import_all()
    if "ray._raylet" in sys.modules:
        sys.exit("no warm process: a module of Ray is imported")
    gc.collect()
    gc.freeze()  # else the first collection of every fork would copy it all
    print(READY, flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        shim, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return keep(shim)
        shim.close()


def listening(path: Path) -> socket.socket:
    listener, begun = socket.socket(socket.AF_UNIX), path.with_suffix(".begun")
    begun.unlink(missing_ok=True)
    listener.bind(str(begun))
    listener.listen(128)
    begun.replace(path)
    return listener


def set_end_with_parent(number: int) -> None:
    """Have the kernel send the signal if the parent ends; none if it is 0."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def call_itself(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def keep(shim: socket.socket) -> None:
    """Make the process that a shim asks for, and end after it. Returns in the process alone."""
    set_end_with_parent(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _, (*files, file), _, _ = socket.recv_fds(shim, 1, 4)
        request = json.loads(os.pread(file, os.fstat(file).st_size, 0))
        os.close(file)
        if unlike := differing(request["environ"]):
            print(f"not forked, as {', '.join(unlike)} may be read by an import", flush=True)
            os._exit(0)
        shim.sendall(b"y")
    except (OSError, ValueError):  # the shim waits no longer
        os._exit(0)
    number, *_ = struct.unpack("3i", shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    pid = os.fork()
    if pid == 0:
        shim.close()
        return become(request, files, number)
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
    asked = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")} | given
    all_names = {*os.environ, *asked} - rank_standing.SET_HERE - {rank_imports.NVML_CHECK}
    names = (name for name in all_names if name.startswith(READ_AT_IMPORT))
    return sorted(name for name in names if os.environ.get(name, "") != asked.get(name, ""))


def become(request: dict[str, Any], files: list[int], shim: int) -> None:
    """Run the program that the shim was started for; SystemExit passes."""
    set_end_with_parent(signal.SIGKILL)
    os.setsid()
    with suppress(OSError):  # Ray asks the kernel to end its workers before itself
        Path("/proc/self/oom_score_adj").write_text(Path(f"/proc/{shim}/oom_score_adj").read_text())
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
    if "numpy" in sys.modules:  # its numbers are other ones than those of the other forks
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and environ.get(AUTOLOAD) != "0":
        rank_standing.serve()  # as `rollcall_torch` does at the end of torch's import
    argv: list[str] = request["argv"]
    show_arguments([sys.executable, *argv])
    call_itself("python")
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
    address = getenv(warm.PADDING.encode())
    size = len(warm.PADDING) + 1 + len(os.environ[warm.PADDING])
    pairs = (os.fsencode(f"{name}={value}") for name, value in environ.items())
    write(address - len(warm.PADDING) - 1, size, b"\0".join(pairs))


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
