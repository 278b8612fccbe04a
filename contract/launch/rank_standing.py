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
RECORD_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Begin the name of the file that NCCL's watchdog writes at a timeout; torch adds the rank.
The second is the older name: of two that are set, torch takes the first."""
RECORD_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORD_SIZE = "2000"
"""Collectives. Torch with the first of RECORDERS has the same default, and warns of the older name;
without it, torch records none."""
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
SET_HERE = frozenset({*RECORD_FILES, *RECORD_SIZES, ON_TIMEOUT})
"""Variables that a process may have from its parent. No import reads them."""
LIBRARIES = ("site-packages", "dist-packages", "lib/python")
"""Parts of the paths of code that is no program's own."""
UCRED = "3i"
"""The kernel's struct ucred: process, user, group."""


def address(mark: str, process: int) -> str:
    """Return the abstract Unix socket of a process on the node with this mark."""
    return f"\0rollcall-{hashlib.sha256(mark.encode()).hexdigest()[:16]}-{process}"


def records_of(mark: str) -> Path:
    """Return where the ranks of the node with this mark leave their records at a timeout."""
    return Path(mark.partition("@")[2]) / "flight"


def record_file(mark: str, process: int) -> Path:
    """Return the beginning of the path of a process's record; torch adds its rank."""
    return records_of(mark) / f"{process}-rank_"


def serve() -> None:
    """Answer this process's node from a thread. Outside of Rollcall's nodes it does nothing.

    A forked child answers, too, once it is a rank of its own: vLLM forks its workers.
    """
    if not (mark := os.environ.get(MARK)):
        return
    listener = _listen(mark, None)

    def in_child() -> None:  # which has none of its parent's threads
        nonlocal listener
        listener.close()
        listener = _listen(mark, _group())

    os.register_at_fork(after_in_child=in_child)


def _leave_record(mark: str) -> None:
    """Have NCCL's watchdog leave this process's record, unless the user says where."""
    folder = records_of(mark)
    given = [os.environ[name] for name in RECORD_FILES if name in os.environ]
    if any(Path(one).parent != folder for one in given):
        return
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in RECORD_FILES:  # a parent's value would have two processes write one file
            os.environ[name] = str(record_file(mark, os.getpid()))
        is_newer = hasattr(sys.modules.get(BINDINGS), RECORDERS[0])
        if not is_newer and not any(name in os.environ for name in RECORD_SIZES):
            os.environ[RECORD_SIZES[1]] = RECORD_SIZE
        os.environ.setdefault(ON_TIMEOUT, "1")


def _listen(mark: str, inherited: Any) -> socket.socket:
    """Answer from a thread. `inherited`: the parent's process group, of which this is no rank."""
    _leave_record(mark)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address(mark, os.getpid()))
        listener.listen()
        answer = threading.Thread(
            target=_answer, args=(listener, inherited), name="standing", daemon=True
        )
        answer.start()
    except (
        OSError,
        RuntimeError,
    ):  # such as too many threads: the program goes on
        listener.close()
    return listener


def is_of(peer: socket.socket, users: tuple[int, ...]) -> bool:
    """Return whether the other side of a Unix socket is a process of one of these users."""
    content = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(UCRED))
    return struct.unpack(UCRED, content)[1] in users


def _answer(listener: socket.socket, inherited: Any) -> None:
    users = (0, os.getuid())
    while True:
        peer, _ = listener.accept()
        with suppress(OSError), peer:
            peer.settimeout(5.0)
            if is_of(peer, users):
                own = _group() is not inherited
                found = told(threading.main_thread().ident) if own else {}
                peer.sendall(json.dumps(found).encode())


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


def _group() -> Any:
    """Return the process group of all ranks; None before the ranks have met."""
    groups = sys.modules.get(GROUPS)
    met = groups is not None and groups.is_initialized()
    return groups._get_default_group() if groups is not None and met else None


def _meeting(store: Any) -> str:
    """Return the address of the store at which the ranks have met."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "port"):
        return f"{store.host}:{store.port}"
    return str(getattr(store, "path", ""))
