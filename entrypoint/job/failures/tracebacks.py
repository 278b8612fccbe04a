"""Pure: reads the tracebacks among printed lines, in each form in which programs print them.

- Python's own `traceback`. Ray prints the frames of an actor behind those of the driver that has
  asked it, without a second header.
- The same behind a margin that each line has, such as vLLM's `ERROR 11-28 10:22:11 [core.py:708] `.
- A group of exceptions (PEP 654): each line behind a gutter, `  | `.
- A box of rich, which typer prints too. Long paths are wrapped in it.
- The stack that `faulthandler` writes at a fatal signal, with the innermost frame first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from entrypoint.processes.programs import OURS, ROOT

HEADER = "Traceback (most recent call last)"
GROUP = "Exception Group "
"""Before the header of a group of exceptions."""
NO_HEADER = '  File "'
"""A syntax error of the program's own file begins with its frame."""
FRAME = re.compile(r'^[>\s]\s*File "(?P<path>[^"]+)", line (?P<line>\d+)')
"""Of Python, and of loguru, which marks a frame by `>`."""
ERROR = re.compile(r"^(?!(?:DEBUG|INFO|WARN(?:ING)?)\b)[A-Za-z_][\w.<>]*(?:\(\w+\))?(?::|$)")
"""The line that ends a traceback: the exception's name, and after a colon its text."""
LINK = re.compile(r"^(?:The above exception was the direct|During handling of the above) ")
"""Between two tracebacks of a chain."""
GUTTER = re.compile(r"^ *(?:\+[-+][-+ .\d]*$|\| ?)")
"""Of a group's line; as a whole, the line between two of its exceptions."""
BOX = re.compile(r"[╭+][─-]+ Traceback \(most recent call last\) [─-]+[╮+]$")
BORDERS = re.compile(r"^[│|] (?P<inner>.*) [│|]$")
BOX_LINE = re.compile(r"^[╭╰+][─-]")
"""At the top or the bottom of a box; of ASCII, only whole tracebacks have one."""
BOX_FRAME = re.compile(r"(?P<path>.+?):(?P<line>\d+) in \S.*")
RAISES = re.compile(r"^\s+(?:raise (?:\w+\.)*[A-Z]|assert\b)")
"""Source that makes an exception of its own. `raise error` passes on one from elsewhere."""
DUMP = re.compile(r"^(?:Current thread|Stack)\b.*\(most recent call first\):$")

NOT_OWN = re.compile(
    r"/(?:site|dist)-packages/"
    r"|/lib(?:64)?/python\d[\d.]*/"  # the standard library
    r"|^<|\.pyx$"  # code without a file, and compiled code
    rf"|^{re.escape(str(ROOT))}/(?:{'|'.join(map(re.escape, sorted(OURS)))})/"
)
"""In the path of a file of an installed package, of Python, or of this product."""


class Part(Enum):
    """What a line is to a traceback."""

    NONE = auto()
    BEGIN = auto()
    FRAMES = auto()
    ERROR = auto()
    """The line that says what was raised."""
    DUMP = auto()
    """Of the stack at a fatal signal, whose cause stands before it."""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    """Without the margin or the gutter of its traceback."""
    part: Part
    place: str = ""
    """`path:line` of the innermost frame of the user's own code so far; "" if there is none."""
    is_raised_there: bool = False
    """That line itself has made the exception, and no other exception was its cause."""


@dataclass(slots=True)
class _Open:
    """The traceback that is being read."""

    margin: re.Pattern[str] | None = field(default=None, init=False)
    is_margin_sure: bool = field(default=False, init=False)
    """A line after the header has had it too."""
    in_group: bool = False
    is_rich: bool = field(default=False, init=False)
    boxes: int = field(default=0, init=False)
    """Boxes in each other that are open, such as that of the local variables."""
    path: str = field(default="", init=False)
    """What a box has shown of a frame's path so far."""
    place: str = field(default="", init=False)
    is_source_next: bool = field(default=False, init=False)
    """The newest line was a frame of the user's own code."""
    raises: bool = field(default=False, init=False)
    """The source of the newest frame, which is of the user's own code, raises an exception."""
    is_linked: bool = field(default=False, init=False)
    """A line has said that the next traceback of the chain follows from this one."""
    follows: bool = False
    """An earlier traceback of its chain has the cause."""
    has_ended: bool = field(default=False, init=False)
    """Its error has been read; frames of a remote process may follow."""
    is_dump: bool = False


class Tracebacks:
    """Reads the lines that one process prints, without terminal control sequences."""

    def __init__(self) -> None:
        self._open: _Open | None = None

    @property
    def is_idle(self) -> bool:
        return self._open is None

    @property
    def is_in_group(self) -> bool:
        return self._open is not None and self._open.in_group

    def read(self, line: str) -> Line:
        """Return what the line is to a traceback. Lines of other programs may stand between."""
        text = self._bare(line)
        if text is None:
            return Line(line, Part.NONE)
        if HEADER in text:
            return self._begin(text)
        if DUMP.match(text):
            self._open = _Open(is_dump=True)
            return Line(text, Part.DUMP)
        if self._open is None and text.startswith(NO_HEADER):
            self._open = _Open()
        if self._open is None:
            return Line(line, Part.NONE)
        if self._open.is_dump:
            return self._read_dump(self._open, text)
        if self._open.boxes:
            return _read_box(self._open, text)
        return self._read_frame(self._open, text)

    def _bare(self, line: str) -> str | None:
        """Return the line without margin and gutter; None for another program's line."""
        now, text = self._open, line
        if now and now.margin:
            if found := now.margin.match(line) or now.margin.match(f"{line} "):
                now.is_margin_sure = True
                text = line[found.end() :]
            elif HEADER in line:
                self._open = now = None
            elif now.is_margin_sure or not FRAME.match(line):
                return None
            else:  # those words stand before the header only
                now.margin = None
        if now and now.in_group:
            if gutter := GUTTER.match(text):
                now.has_ended = now.has_ended and "-" not in gutter[0]
                return text[gutter.end() :]
            if text.strip() and HEADER not in text:
                self._open = None
        return text

    def _begin(self, text: str) -> Line:
        before, _, _ = text.partition(HEADER)
        follows = self._open is not None and self._open.is_linked
        new = _Open(in_group=self.is_in_group, follows=follows)
        if box := BOX.search(text):
            new.is_rich, new.boxes = True, 1
            before = text[: box.start()].strip("│| ")
        elif before.endswith(GROUP):
            new.in_group = True
            before = before.removesuffix(GROUP).rstrip("+ ")
        if before.strip():
            new.margin = re.compile(re.sub(r"\d+", r"\\d+", re.escape(before)))
        elif self._open:
            new.margin, new.is_margin_sure = self._open.margin, self._open.is_margin_sure
        self._open = new
        return Line(text.removeprefix(before), Part.BEGIN)

    def _read_frame(self, now: _Open, text: str) -> Line:
        text = _inner(text) if now.is_rich else text
        if frame := FRAME.match(text):
            now.has_ended = now.raises = False
            now.is_source_next = _take(now, frame)
        elif now.is_source_next:
            now.is_source_next, now.raises = False, bool(RAISES.match(text))
        if not frame and text.strip() and not text[0].isspace():
            if not now.has_ended:
                now.has_ended = bool(ERROR.match(text))
                part = Part.ERROR if now.has_ended else Part.NONE
                return Line(text, part, now.place, now.raises and not now.follows)
            now.is_linked = bool(LINK.match(text))
            if not now.in_group and not now.is_linked:
                self._open = None
                return Line(text, Part.NONE)
        return Line(text, Part.FRAMES, now.place)

    def _read_dump(self, now: _Open, text: str) -> Line:
        frame = FRAME.match(text)
        if frame and not now.place:
            _take(now, frame)
        elif text.strip() and not text[0].isspace():
            self._open = None
            return Line(text, Part.NONE)
        return Line(text, Part.DUMP, now.place)


def _read_box(now: _Open, text: str) -> Line:
    bare = _inner(text)
    if BOX_LINE.match(bare):
        now.boxes += 1 if bare[0] == "╭" else -1
        now.path = ""
    elif not bare.strip() or bare[0].isspace() or bare.startswith("❱"):
        now.path = ""
    else:
        now.path += f"{bare.rstrip()} " if bare.endswith(" ") else bare  # cut in a word if full
        if frame := BOX_FRAME.fullmatch(now.path.strip()):
            _take(now, frame)
    return Line(text, Part.FRAMES, now.place)


def in_a_panel(text: str) -> str:
    """Return the text of a line of a panel, such as typer's of a wrong option; else ""."""
    found = BORDERS.match(text)
    return found["inner"].strip() if found and "│" not in found["inner"] else ""


def _inner(text: str) -> str:
    """Return a line of a box, or of boxes in boxes, without the borders at both sides."""
    bare = text.strip()
    while found := BORDERS.match(bare):
        bare = found["inner"].strip() if found["inner"][:1] in "╭│╰" else found["inner"]
    return bare if bare != text.strip() else text


def _take(now: _Open, frame: re.Match[str]) -> bool:
    """Return whether the frame is of the user's own code; keep its place if so."""
    is_own = not NOT_OWN.search(frame["path"])
    if is_own:
        now.place = f"{frame['path']}:{frame['line']}"
    return is_own


def last_traceback(lines: Sequence[str]) -> int | None:
    """Return the number of the line with which the last traceback begins, its chain included."""
    begin, reader, is_linked = None, Tracebacks(), False
    for number, line in enumerate(lines):
        is_inner = reader.is_in_group
        said = reader.read(line)
        if said.part is Part.BEGIN and not (is_linked or is_inner):
            begin = number
        if said.text.strip():
            is_linked = bool(LINK.match(said.text))
    return begin
