"""Texts of a run on a terminal: without what a terminal would obey."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

CLEAR = "\x1b[H\x1b[2J"
OBEYED = re.compile(
    r"""
      \x1b [\]PX^_] [^\x07\x1b\x9c]* (?: \x07 | \x1b\\ | \x9c )?  # titles, clipboard, links
    | \x1b \[ [0-?]* [ -/]* (?! m ) [@-~]                         # cursor, clearing, modes
    | \x1b (?! \[ [0-9;:]* m ) .?
    | [\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]
    """,
    re.VERBOSE,
)
"""Matches control sequences but colours, and control characters but tab and line breaks."""


def harmless(text: str) -> str:
    """Return a text that only shows: it neither moves the cursor nor writes to the clipboard."""
    return OBEYED.sub("", text)


class Terminal:
    """Standard output of a command that shows texts of a run."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(harmless(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def clear() -> None:
    """Have the terminal of standard output show an empty page."""
    out: Any = sys.stdout
    (out.stream if isinstance(out, Terminal) else out).write(CLEAR)
