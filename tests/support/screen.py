"""What a person sees of a program in a terminal: a real one, whose page an emulator keeps."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyte

from tests.support.terminal import in_terminal
from tests.support.waiting import eventually

LOOK_SECONDS = 0.05


class Terminal:
    """A program's terminal."""

    def __init__(self, program: subprocess.Popen[bytes], descriptor: int, columns: int) -> None:
        self.program = program
        self._descriptor = descriptor
        self._screen = pyte.Screen(columns, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    def rows(self) -> list[str]:
        """Return the rows that have text, after all that the program has written so far."""
        while select.select([self._descriptor], [], [], LOOK_SECONDS)[0]:
            try:
                self._stream.feed(os.read(self._descriptor, 65536))
            except OSError:  # it ends with its program
                break
        return [row.rstrip() for row in self._screen.display if row.strip()]

    @property
    def hides_cursor(self) -> bool:
        return bool(self._screen.cursor.hidden)

    def shows(self, *parts: str) -> list[str]:
        """Wait until each part is in a row; return the rows."""
        eventually(lambda: all(any(part in row for row in self.rows()) for part in parts))
        return self.rows()


ROWS = 24


@contextmanager
def terminal(argv: list[str], env: Mapping[str, str], columns: int = 80) -> Iterator[Terminal]:
    """Run a program in a terminal with so many columns and 24 rows."""
    sized = {**env, "TERM": "xterm", "COLUMNS": str(columns), "LINES": str(ROWS)}
    with in_terminal(argv, sized) as (program, descriptor):
        size = struct.pack("HHHH", ROWS, columns, 0, 0)
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
        try:
            yield Terminal(program, descriptor, columns)
        finally:
            os.close(descriptor)
