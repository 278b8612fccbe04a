"""The kernel's log, read further and further without waiting for more."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

LONGEST_RECORD = 8192
"""Bytes: the kernel gives one record a read, and none is longer."""


class KernelLog:
    """Use it with `with`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be read here."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def __enter__(self) -> KernelLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def read(self) -> str:
        """Return the records since the last call; first, all that are kept. Raises OSError."""
        records = []
        while True:
            try:
                record = os.read(self._descriptor, LONGEST_RECORD)
            except BrokenPipeError:  # the record was overwritten before it was read: read the next
                continue
            except BlockingIOError:
                break
            if not record:
                break
            records.append(record.decode(errors="replace"))
        return "".join(records)
