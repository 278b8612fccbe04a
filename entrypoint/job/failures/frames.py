"""Pure: the place in the user's own code at which a printed Python traceback ends.

The form of a traceback is that of the `traceback` module of Python's library. Ray prints the frames
of an actor behind those of the driver that has asked it, without a second header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from entrypoint.processes.programs import OURS, ROOT

TRACEBACK = "Traceback (most recent call last):"
BEGINS = (TRACEBACK, '  File "')
"""A syntax error of the program's own file has no header."""
FRAME = re.compile(r'^\s+File "(?P<path>[^"<>]+)", line (?P<line>\d+)')
NOT_OWN = re.compile(
    r"/(?:site|dist)-packages/"
    r"|/lib(?:64)?/python\d[\d.]*/"  # the standard library
    rf"|^{re.escape(str(ROOT))}/(?:{'|'.join(map(re.escape, sorted(OURS)))})/"
)
"""In the path of a file of an installed package, of Python, or of this product."""


@dataclass(slots=True)
class Frames:
    """Reads the lines that one process prints, from the beginning of a traceback on."""

    place: str = ""
    """`path:line` of the innermost frame of the user's own code; "" if there is none."""
    has_ended: bool = False
    """The line that ends the traceback has been read."""

    def read(self, line: str) -> bool:
        """Read a line without a prefix; return whether it belongs to the traceback."""
        if line.startswith(TRACEBACK):
            self.place, self.has_ended = "", False
        elif frame := FRAME.match(line):
            self.has_ended = False
            if not NOT_OWN.search(frame["path"]):
                self.place = f"{frame['path']}:{frame['line']}"
        elif line.strip() and not line[0].isspace():
            if self.has_ended:
                return False
            self.has_ended = True
        return True
