"""Copies what Ray's workers of this node print into the run directory, while they print it.

Ray keeps it in a file for each worker process below its own directory. The copy is one file for
each node, so that it is there after the node has died.
"""

from __future__ import annotations

import io
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contract.redaction import redact
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.console import DATE_FORMAT

log = logging.getLogger(__name__)

EVERY_SECONDS = 2.0
LAST_SECONDS = 3.0
"""For the last lines, when the node ends."""
OF_A_WORKER = re.compile(r"worker-[0-9a-f]+-[0-9a-f]+-(?P<pid>[0-9]+)\.(?:out|err)")
NAMES = re.compile(rb":(?:actor|task)_name:(.+)")
"""Matches a line that Ray adds: the name of what prints from here on."""
ADDED = re.compile(rb":(?:job_id|actor_name|task_name):")
READ_BYTES = 2**20
"""Limit for one look at one file; what is before the newest so many bytes is left out."""
MOST_BYTES = 16 * 2**20
"""Size at which the copy is begun anew; the one before is kept beside it."""


@dataclass(slots=True)
class _Seen:
    offset: int = 0
    name: str = ""
    """The actor or task that prints."""
    cut: bool = False
    """The offset is within a line, of which the rest is left out, too."""


class _Lines(NamedTuple):
    lines: list[bytes]
    read: int
    """Bytes up to the end of these lines."""
    dropped: int
    """Bytes among them that are in no line."""
    cut: bool


def _lines(data: bytes, *, cut: bool) -> _Lines:
    """Pure: return the whole lines of `data`. `cut`: it begins within a line.

    A part of a line may have half a secret, which nobody would mask.
    """
    begin = data.find(b"\n") + 1 if cut else 0
    end = data.rfind(b"\n") + 1
    if end == 0 and (cut or len(data) == READ_BYTES):
        return _Lines([], len(data), len(data), True)
    return _Lines(data[begin:end].splitlines(), end, begin, False)


def _is_added(seen: _Seen, line: bytes) -> bool:
    """Return whether Ray has added the line; note the name that it tells."""
    if found := NAMES.fullmatch(line):
        seen.name = found[1].decode(errors="replace")
    return ADDED.match(line) is not None


class ActorLogs:
    def __init__(self, session: Path, copy: Path, secrets: frozenset[str]) -> None:
        """`session`: Ray's directory of its newest session. What it holds already is old."""
        self._logs = session / "logs"
        self._copy = copy
        self._secrets = secrets
        self._seen = {path: _Seen(path.stat().st_size) for path in self._files()}

    def copy(self) -> None:
        """Append the lines that are new. Raises OSError."""
        for path in self._files():
            if lines := self._new_lines(path):
                self._append("".join(lines).encode())

    def _files(self) -> list[Path]:
        try:
            directory = self._logs.resolve(strict=True)  # another session has other files
            return sorted(path for path in directory.iterdir() if OF_A_WORKER.fullmatch(path.name))
        except OSError:
            return []

    def _new_lines(self, path: Path) -> list[str]:
        seen = self._seen.setdefault(path, _Seen())
        with suppress(FileNotFoundError), _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(seen.offset, size - READ_BYTES)
            file.seek(begin)
            found = _lines(file.read(READ_BYTES), cut=seen.cut or begin > seen.offset)
            left_out = begin - seen.offset + found.dropped
            seen.offset, seen.cut = begin + found.read, found.cut
            note = [f"[... {left_out} bytes are left out ...]".encode()] if left_out else []
            lines = [line for line in found.lines if not _is_added(seen, line)]
            return [self._line(path, seen, line) for line in (*note, *lines)]
        return []

    def _line(self, path: Path, seen: _Seen, line: bytes) -> str:
        pid = path.stem.rpartition("-")[2]
        text = redact(line.decode(errors="replace"), self._secrets)
        who = f"{seen.name} pid={pid}" if seen.name else f"pid={pid}"
        return f"{time.strftime(DATE_FORMAT)} ({who}) {text}\n"

    def _append(self, content: bytes) -> None:
        self._copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if self._copy.stat().st_size + len(content) > MOST_BYTES:
                self._copy.replace(self._copy.with_name(f"{self._copy.name}.1"))
        with self._copy.open("ab", buffering=0) as file:
            file.write(content)


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a plain file of this user: Ray's directory is open to every user of the machine.

    Raises FileNotFoundError for anything else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise FileNotFoundError
        yield file


@contextmanager
def copying(settings: Settings) -> Iterator[None]:
    """Copy from a thread until the block ends; then copy the rest, if storage takes it in time."""
    copy = RunFiles(settings.run_dir).logs / f"actors-{settings.node_name}.log"
    logs = ActorLogs(settings.ray_dir / "session_latest", copy, settings.secrets)
    over = threading.Event()
    thread = threading.Thread(target=_copy, args=(logs, over), name="actor-logs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_SECONDS)


def _copy(logs: ActorLogs, over: threading.Event) -> None:
    last = False
    while not last:
        last = over.wait(EVERY_SECONDS)
        try:
            logs.copy()
        except OSError as error:
            log.debug("Ray's logs are not copied: %s", error)  # the next round may find room
