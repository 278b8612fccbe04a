"""Copies a program's output into a log, with secrets masked in each line."""

from __future__ import annotations

import codecs
import logging
import os
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path

from contract.redaction import END_OF_LINE, LINE, begins_value, cut_between, redact_lines

log = logging.getLogger(__name__)

LONGEST_VALUE = 2**12
"""Characters of an option's value that is kept whole when a line is cut."""
LONGEST_LINE = 2**20
"""Characters; a longer line is passed on in pieces."""


class Copy:
    r"""Writes the lines to `path` and passes them to `tell`, with secrets masked.

    A progress bar returns to the start of its line with a lone \r: each state is a line here.

    It waits until a line is complete: half a secret cannot be recognised. A line that grows beyond
    LONGEST_LINE is passed on in pieces, cut where no secret can be.
    """

    def __init__(
        self, path: Path, tell: Callable[[str], None], secrets: frozenset[str] = frozenset()
    ) -> None:
        """`tell`: gets the complete lines as they come, in one text."""
        self._file = _opened(path)
        self._tell = tell
        self._secrets = secrets
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun: list[str] = []
        """Pieces of the incomplete line."""
        self._length = 0
        """Characters of the incomplete line."""
        self._skips = False
        """The rest of the line that comes is left out: its beginning was."""

    def take(self, data: bytes) -> None:
        """The next bytes of the output."""
        self._take(self._decoder.decode(data))

    def skip(self) -> None:
        """A part of the output is left out: leave out the lines that it cuts, too.

        Half a secret cannot be recognised.
        """
        self._decoder.reset()
        self._begin("")
        self._write("rollcall: a part of the output is left out here\n")
        self._skips = True

    def close(self) -> None:
        self._take(self._decoder.decode(b"", final=True))
        if rest := "".join(self._begun):
            self._write(rest)
        self._file.close()

    def _take(self, text: str) -> None:
        if self._skips:
            if (end := END_OF_LINE.search(text)) is None:
                return
            text, self._skips = text[end.end() :], False
        complete = 1 + max(text.rfind("\n"), text.rfind("\r"))
        if complete:
            lines = "".join([*self._begun, text[:complete]])
            self._begin("")
            self._write(lines)
        if text[complete:]:
            self._begun.append(text[complete:])
            self._length += len(text) - complete
        if self._length > LONGEST_LINE:
            line = "".join(self._begun)
            at = _cut(line, self._secrets)
            self._begin(line[at:])
            self._write(line[:at])

    def _begin(self, text: str) -> None:
        """Begin an incomplete line with this text."""
        self._begun, self._length = [text], len(text)

    def _write(self, lines: str) -> None:
        """Write the lines, as far as the disk takes them, and pass them on."""
        masked = redact_lines(lines, self._secrets)
        try:
            self._file.write(masked.encode())
        except OSError as error:
            log.warning("a part of the job's log is not copied: %s", error.strerror)
        self._tell(masked)


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a text that a copy tells, without their ends."""
    return (line.rstrip("\r\n") for line in LINE.findall(text) if line)


def _cut(line: str, secrets: frozenset[str]) -> int:
    """Return where the line may be cut: after its last space, but not within a secret."""
    at = 1 + line.rfind(" ") or len(line)
    if (begin := begins_value(line[max(0, at - LONGEST_VALUE) : at])) is not None:
        at = at - min(at, LONGEST_VALUE) + begin
    return cut_between(line, at, secrets)


def _opened(path: Path) -> RawIOBase:
    """Open without a buffer: on a full disk, a buffer would raise again when it is closed."""
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        log.warning("the job's log is not copied to %s: %s", path, error.strerror)
        return Path(os.devnull).open("ab", buffering=0)
