"""Where this process stands as a rank, and how it tells its node.

A rank's process serves it from a thread. It answers with the rank, its collectives in torch's
flight recorder, and the line of the program's own code that it executes. The standard library
alone: `rollcall_torch` loads this file into programs that know nothing of Rollcall.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

MARK = "ROLLCALL_NODE_MARK"
"""Variable of all processes of a node that Rollcall started."""
BINDINGS = "torch._C._distributed_c10d"
GROUPS = "torch.distributed.distributed_c10d"
RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of gloo, which has no record of tensors on GPUs, and of NCCL. They list what is not done, too."""
LIBRARIES = ("site-packages", "dist-packages", "lib/python")
"""Parts of the paths of code that is no program's own."""
UCRED = "3i"
"""The kernel's struct ucred: process, user, group."""


def address(mark: str, process: int) -> str:
    """Return the abstract Unix socket of a process on the node with this mark."""
    return f"\0rollcall-{hashlib.sha256(mark.encode()).hexdigest()[:16]}-{process}"


def serve() -> None:
    """Answer this process's node from a thread. Outside of Rollcall's nodes it does nothing."""
    if not (mark := os.environ.get(MARK)):
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address(mark, os.getpid()))
        listener.listen()
        os.register_at_fork(after_in_child=listener.close)  # a child has no thread that answers
        threading.Thread(target=_answer, args=(listener,), name="standing", daemon=True).start()
    except (
        OSError,
        RuntimeError,
    ):  # such as too many threads: the program goes on
        listener.close()


def is_of(peer: socket.socket, users: tuple[int, ...]) -> bool:
    """Return whether the other side of a Unix socket is a process of one of these users."""
    content = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(UCRED))
    return struct.unpack(UCRED, content)[1] in users


def _answer(listener: socket.socket) -> None:
    users = (0, os.getuid())
    while True:
        peer, _ = listener.accept()
        with suppress(OSError), peer:
            peer.settimeout(5.0)
            if is_of(peer, users):
                peer.sendall(json.dumps(told(threading.main_thread().ident)).encode())


def told(thread: int | None) -> dict[str, Any]:
    """Return where this process stands; an empty object if it is no rank. `thread`: its own code's.

    `meeting` names the ranks' meeting place: ranks of one model have the same.
    """
    groups = sys.modules.get(GROUPS)
    if groups is None or not groups.is_initialized():
        return {}
    return {
        "rank": groups.get_rank(),
        "world": groups.get_world_size(),
        "meeting": _meeting(groups._get_default_store()),
        "records": records(),
        "now": time.time(),
        "at": place(thread),
    }


def records() -> list[str]:
    """Return what torch's flight recorders have, as JSON. Torch is not imported for this."""
    bindings = sys.modules.get(BINDINGS)
    recorders = (getattr(bindings, name, None) for name in RECORDERS)
    found = (recorder(True, False) for recorder in recorders if recorder is not None)
    return [one.decode() if isinstance(one, bytes) else one for one in found]


def place(thread: int | None) -> str:
    """Return line and function of a thread's innermost frame outside of libraries, or ""."""
    frame: FrameType | None = sys._current_frames().get(thread) if thread is not None else None
    while frame and any(part in frame.f_code.co_filename for part in LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"


def _meeting(store: Any) -> str:
    """Return the address of the store at which the ranks have met."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "port"):
        return f"{store.host}:{store.port}"
    return str(getattr(store, "path", ""))
