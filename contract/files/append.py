"""Appends lines to files of a run that several processes, or a crash, may leave incomplete."""

from __future__ import annotations

import os
from pathlib import Path

from contract.files import umask
from contract.files.os_errors import with_path


def append_line(path: Path, line: bytes, *, durable: bool = False) -> int:
    """Append a line, which has no line break, to `path`; return the offset of its end.

    The line is written by one `write` on an O_APPEND descriptor. So processes of one machine may
    write without a lock. A line that a crash left without an end gets one first. `durable`: return
    when the disk has the line. Raises OSError.
    """
    umask.restore()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with with_path(path):
            start = b"\n" if _is_torn(descriptor) else b""
            left = start + line + b"\n"
            while left:  # a full disk takes a part, and raises at the rest
                left = left[os.write(descriptor, left) :]
            if durable:
                os.fsync(descriptor)
            return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
