"""The system calls that a node makes on its storage and temporary directories, each tried once.

A file system may lack one that a run needs only hours later: Lustre has flock by an option alone,
and mounts of object stores take no append. The calls are those of a traced run, Ray's included.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path

from contract.background import in_background
from contract.durations import duration
from contract.files.append import append_line
from contract.run_dir import sync_directory, write_atomically
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.run import errors

PREFIX = ".rollcall-probe-"
CONTENT = b"probe\n"
CALL_SECONDS, ALL_SECONDS = 5.0, 9.0
"""Limits of one call, and of all before the last one begins."""
MOST_NAMED = 3
"""Calls in a sentence that one error refuses."""
SLOW_SECONDS = 1.5
"""Seconds of one call from which the node warns: a run makes most of them at every step."""
OBJECT_STORE = (
    "use a file system that all nodes share: a bucket belongs into ROLLCALL_STORAGE, not on a mount"
)
LOCKS = (
    "mount Lustre with -o flock, and NFS as version 4 (version 3 needs the server's lock service), "
    "or use other storage"
)
LOCAL = "use a local file system"
HANGS = "find out why: a stale mount, a server or its lock service that does not answer"


@dataclass(frozen=True, slots=True)
class Call:
    """One call, or a few that belong together."""

    does: str
    """What follows "cannot": be locked (flock)."""
    attempt: Callable[[Path], None]
    """Makes the call in a directory that is for all calls alone. Raises OSError."""
    remedy: str = ""
    """If the file system refuses the call; "" if the error itself says what to do."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a call."""

    call: Call
    seconds: float
    error: OSError | None = None
    answered: bool = True


def _take(place: Path) -> None:
    descriptor = os.open(place / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, CONTENT)
        os.fsync(descriptor)
        _expect(os.pread(descriptor, len(CONTENT), 0) == CONTENT)
    finally:
        os.close(descriptor)
    (place / "new").unlink()


def _file(place: Path) -> None:
    (place / "file").write_bytes(CONTENT)


def _append(place: Path) -> None:
    _file(place)
    append_line(place / "file", b"more", durable=True)
    _expect((place / "file").read_bytes() == CONTENT + b"more\n")


def _replace(place: Path) -> None:
    for text in ("old", "new"):
        write_atomically(place / "replaced", text)
    _expect((place / "replaced").read_text() == "new")


def _overwrite(place: Path) -> None:
    _file(place)
    with (place / "file").open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"P", 0)
        os.ftruncate(file.fileno(), 1)
    _expect((place / "file").read_bytes() == b"P")


def _lock(place: Path) -> None:
    _file(place)
    with (place / "file").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)


def _map(place: Path) -> None:
    """Shared as checkpoints are read, private as safetensors reads a model."""
    _file(place)
    with (place / "file").open("rb") as file:
        for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
            with mmap.mmap(file.fileno(), 0, flags=kind, prot=mmap.PROT_READ) as memory:
                _expect(memory[:1] == CONTENT[:1])


def _change_mode(place: Path) -> None:
    _file(place)
    (place / "file").chmod(0o644)


def _set_time(place: Path) -> None:
    _file(place)
    os.utime(place / "file")


def _move(place: Path) -> None:
    (place / "directory").mkdir()
    (place / "directory" / "file").write_bytes(CONTENT)
    (place / "directory").rename(place / "moved")
    _expect([entry.name for entry in os.scandir(place / "moved")] == ["file"])
    sync_directory(place)
    shutil.rmtree(place / "moved")


def _link(place: Path) -> None:
    (place / "link").symlink_to("file")
    (place / "link").unlink()


def _listen(place: Path) -> None:
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:  # by the descriptor, since a socket's path has at most 107 bytes
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(f"/proc/self/fd/{directory}/socket")
            server.listen()
            client.connect(f"/proc/self/fd/{directory}/socket")
    finally:
        os.close(directory)
    (place / "socket").unlink()


def _expect(holds: bool) -> None:
    """Raise OSError if what was written is not what is read."""
    if not holds:
        raise OSError(errno.EIO, "what is read is not what was written")


WRITE = Call("be written (mkdir)", Path.mkdir)
OF_STORAGE = (
    Call("take a file (open, write, fsync)", _take),
    Call("be locked (flock)", _lock, LOCKS),
    Call("map a file into memory (mmap)", _map, OBJECT_STORE),
    Call("append to a file (O_APPEND)", _append, OBJECT_STORE),
    Call("change a file in place (pwrite, ftruncate)", _overwrite, OBJECT_STORE),
    Call("replace a file (rename, fsync of the directory)", _replace, OBJECT_STORE),
    Call("move and delete a directory (rename, rmdir)", _move, OBJECT_STORE),
    Call("change a file's mode (chmod)", _change_mode, "mount it with the rights of POSIX"),
)
OF_TEMP = (
    *(replace(call, remedy=LOCAL) for call in OF_STORAGE),
    Call("set a file's time (utime)", _set_time, LOCAL),
    Call("hold a symbolic link", _link, LOCAL),
    Call("hold a socket (bind)", _listen, LOCAL),
)


def tried(directory: Path, calls: Sequence[Call]) -> list[Trial]:
    """Make each call below `directory`, and leave nothing behind.

    The last trial is that of a call which does not answer within CALL_SECONDS: the thread that
    makes it may hang forever. After ALL_SECONDS no further call is made.
    """
    began, place = time.monotonic(), Path(directory, f"{PREFIX}{uuid.uuid4().hex}")
    trials = [_try(WRITE, place)]
    if trials[0].error or not trials[0].answered:
        return trials
    for call in calls:
        trials.append(_try(call, place))
        if not trials[-1].answered:
            return trials
        if time.monotonic() > began + ALL_SECONDS:
            break
    shutil.rmtree(place, ignore_errors=True)
    return trials


def _try(call: Call, place: Path) -> Trial:
    began = time.monotonic()
    answer = in_background("probe", lambda: call.attempt(place))
    answered = bool(wait([answer], CALL_SECONDS).done)
    error = answer.exception() if answered else None
    if error is not None and not isinstance(error, OSError):
        raise error
    return Trial(call, time.monotonic() - began, error, answered)


def judged(path: Path, trials: Sequence[Trial], elsewhere: str) -> Finding | None:
    """Return what is wrong with the directory; None if every call was answered, and soon.

    `elsewhere`: what sets another directory.
    """
    if silent := [trial.call for trial in trials if not trial.answered]:
        evidence = f"{path} gives no answer within {CALL_SECONDS:g} s if it is to {silent[0].does}"
        return Finding(Verdict.FAIL, evidence, f"{HANGS}; or {elsewhere}")
    if refused := [(trial.call, trial.error) for trial in trials if trial.error]:
        why: dict[str, list[str]] = {}
        for call, error in refused:
            why.setdefault(error.strerror or str(error), []).append(call.does)
        evidence = "; ".join(f"cannot {_some(does)}: {reason}" for reason, does in why.items())
        remedies = [_remedy(call, error) for call, error in refused]
        remedy = "; ".join(dict.fromkeys(filter(None, [*remedies, elsewhere])))
        return Finding(Verdict.FAIL, f"{path} {evidence}", remedy)
    longest = max(trials, key=lambda trial: trial.seconds)
    if longest.seconds > SLOW_SECONDS:
        evidence = f"{path} takes {duration(longest.seconds)} to {longest.call.does}"
        return Finding(Verdict.WARN, evidence, f"use faster storage: {elsewhere}")
    return None


def _some(does: Sequence[str]) -> str:
    more = f" and {len(does) - MOST_NAMED} more calls" if len(does) > MOST_NAMED else ""
    return ", ".join(does[:MOST_NAMED]) + more


def _remedy(call: Call, error: OSError) -> str:
    """What to do, by the error if it tells the storage's state, else by the call."""
    by_state = error.errno in errors.TEMPORARY or error.errno == errno.EROFS
    return errors.remedy(error) if by_state or not call.remedy else call.remedy
