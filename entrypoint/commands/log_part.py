"""Pure: the lines of a log from a time on, or at its end; Ray's own lines at its beginning."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{3,6})?) ?(Z|[+-]\d\d:?\d\d)?(?!\d)", re.ASCII
)


RAYS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\s+(?:DEBUG|INFO|WARNING) \S+\.py:\d+ -- "
    r"|Running entrypoint for job |\S*/ray/\S+\.py:\d+: \w*Warning: | +warnings\.warn\("
)
"""Lines with which Ray begins a job's log: its loggers' and its warnings, and the command."""


class Fold:
    """Puts one line in the place of Ray's own at the beginning of a log, which comes in pieces."""

    def __init__(self) -> None:
        self._count = 0
        self._begun = False
        self._waiting = ""

    def read(self, text: str) -> str:
        """Return what is shown of the next piece."""
        if self._begun:
            return text
        self._waiting += text
        while (end := self._waiting.find("\n") + 1) and RAYS.match(self._waiting):
            self._count, self._waiting = self._count + 1, self._waiting[end:]
        is_other = end or "\r" in self._waiting  # a progress bar may have no end
        return self.close() if is_other else ""

    def close(self) -> str:
        """Return what is shown at the end of the log."""
        said = f"Ray's own lines: {self._count} (rollcall logs --all shows them)\n"
        shown = (said if self._count and not self._begun else "") + self._waiting
        self._begun, self._waiting = True, ""
        return shown


def without_rays(text: str) -> str:
    """Return a log, or the end of one, with one line in the place of Ray's own at its beginning."""
    fold = Fold()
    return fold.read(text) + fold.close()


def time_of(line: str) -> datetime | None:
    """Return the time with which a line begins; None if it has none. No zone: local time."""
    if (found := STAMP.match(line)) is None:
        return None
    try:
        return datetime.fromisoformat(found[1].replace(",", ".") + (found[2] or "")).astimezone()
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Part:
    lines: int | None = None
    """So many lines at the end; None: all."""
    since: datetime | None = None
    """No line from before this time; None: all."""
    time_of: Callable[[str], datetime | None] = time_of

    @property
    def is_whole(self) -> bool:
        return self.lines is None and self.since is None

    def is_in(self, end: str) -> bool:
        """Return whether this end of a log, whose first line may be cut, has the whole part."""
        if self.since is None:
            return end.count("\n") > (self.lines or 0)
        lines = io.StringIO(end[end.find("\n") + 1 :], newline="\n")
        first = next(filter(None, map(self.time_of, lines)), None)
        return first is not None and first < self.since

    def of(self, text: str) -> list[str]:
        """Return the lines of `text` that belong to the part, each with its end."""
        rows = self._recent(list(io.StringIO(text, newline="\n")))
        return rows if self.lines is None else rows[max(0, len(rows) - self.lines) :]

    def _recent(self, rows: list[str]) -> list[str]:
        """Return the rows from the first that is not too old on; all if no row has a time."""
        times: Iterable[datetime | None] = () if self.since is None else map(self.time_of, rows)
        dated = False
        for number, at in enumerate(times):
            dated = dated or at is not None
            if at is not None and self.since is not None and at >= self.since:
                return rows[number:]
        return [] if dated else rows
