"""Copies a program's output line by line into a log, with secrets masked."""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path

from contract.redaction import cut_between, redact

log = logging.getLogger(__name__)

END_OF_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")
"""A progress bar returns to the start of its line with a lone \\r: each state is a line here."""
LONGEST_LINE = 2**20
"""Characters; a longer line is passed on in pieces."""


class Copy:
    """Writes each line to `path` and passes it to `tell`, with secrets masked.

    It waits until a line is complete: half a secret cannot be recognised. A line that grows beyond
    LONGEST_LINE is passed on in pieces, cut where no secret can be.
    """

    def __init__(
        self, path: Path, tell: Callable[[str], None], secrets: frozenset[str] = frozenset()
    ) -> None:
        self._file = _opened(path)
        self._tell = tell
        self._secrets = secrets
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun: list[str] = []
        """Pieces of the incomplete line."""
        self._length = 0
        """Characters of the incomplete line."""

    def take(self, data: bytes) -> None:
        """The next bytes of the output."""
        self._take(self._decoder.decode(data))

    def close(self) -> None:
        self._take(self._decoder.decode(b"", final=True))
        if rest := "".join(self._begun):
            self._write([rest])
        self._file.close()

    def _take(self, text: str) -> None:
        complete = 1 + max(text.rfind("\n"), text.rfind("\r"))
        if complete:
            lines = "".join([*self._begun, text[:complete]])
            self._begin("")
            self._write(END_OF_LINE.findall(lines))
        if text[complete:]:
            self._begun.append(text[complete:])
            self._length += len(text) - complete
        if self._length > LONGEST_LINE:
            line = "".join(self._begun)
            at = _cut(line, self._secrets)
            self._begin(line[at:])
            self._write([line[:at]])

    def _begin(self, text: str) -> None:
        """Begin an incomplete line with this text."""
        self._begun, self._length = [text], len(text)

    def _write(self, lines: list[str]) -> None:
        """Write the lines, as far as the disk takes them, and pass each one on."""
        masked = [redact(line, self._secrets) for line in lines]
        try:
            self._file.write("".join(masked).encode())
        except OSError as error:
            log.warning("a part of the job's log is not copied: %s", error.strerror)
        for line in masked:
            self._tell(line.rstrip("\r\n"))


def _cut(line: str, secrets: frozenset[str]) -> int:
    """Return where the line may be cut: after its last space, but not within a secret."""
    return cut_between(line, 1 + line.rfind(" ") or len(line), secrets)


def _opened(path: Path) -> RawIOBase:
    """Open without a buffer: on a full disk, a buffer would raise again when it is closed."""
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        log.warning("the job's log is not copied to %s: %s", path, error.strerror)
        return Path(os.devnull).open("ab", buffering=0)
