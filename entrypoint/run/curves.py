"""A run's metrics as curves that the page and the report draw: thinned, read once, coloured.

`RUN/metrics.jsonl` may have 100,000 rows. Each of at most `MOST_POINTS` points is the mean of the
rows of as many steps; of many rows, only some are parsed.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from contract.files import stored_json
from contract.files.plain_files import open_plain
from contract.metrics.charts import CHARTS, MAIN, Chart, chart_of, charts_of

MOST_POINTS = 400
"""When there are more, each two become one."""
READ_BYTES = 2**20
READ_SECONDS = 0.5
"""About the time that one answer may take to read: a reader asks again for the rest."""
PART_BYTES = 2**16
"""Of them, the rows to parse are chosen together."""
END_BYTES = 2**8
ROWS_OF_POINT = 8
"""Rows of a point that are parsed, if there are more."""
RARE = b'"eval/'
"""Is in the rows that are all parsed."""
DIGITS = 5
TIMING = "timing/"
REWARD, ACCURACY = "eval/reward", "eval/accuracy"
SHARES = re.compile(r"eval/(?:accuracy|pass\d+)")
"""Shares of the completions, or prompts, that are right; `eval/pass1` is the accuracy."""
GREY = "#7d8590"
BLUE, CLAY, GREEN, MAGENTA = "#0693da", "#cf705c", "#328205", "#c909af"
VIOLET, ROSE, LAVENDER, RED = "#8b37ff", "#d60c69", "#8077ff", "#fb0422"
LINES = (BLUE, GREEN, VIOLET, ROSE, CLAY, MAGENTA, LAVENDER, RED)
"""Of curves that have no colour of their own, one after the other: the first SOLID differ most.

Each has a contrast of at least 3 to 1 (WCAG 2.2, 1.4.11) on the light and on the dark ground. The
palette of Okabe and Ito (2008) and the bright one of Tol (2021) have not: their yellows have less
than 2 to 1 on white. So these were searched for the greatest least difference: two of them, or one
and GREY, differ by at least 18 (CIE 1976) for people without one of the three kinds of cones, too,
as Machado, Oliveira and Fernandes (2009) simulate it.
"""
DASHES: Sequence[Sequence[int]] = ((), (10, 5), (3, 4))
"""Lengths of a line and of the gap after it, in pixels."""
SOLID = 4
"""So many colours have the same dash: of more curves in a chart, the dash tells two apart, too."""
PHASES: Mapping[str, str] = {
    "generate": BLUE,
    "wait": GREY,
    "reward": CLAY,
    "forward": VIOLET,
    "update": GREEN,
    "publish": MAGENTA,
}
"""Of the phases of a step."""


T = TypeVar("T")


class Style(NamedTuple):
    """How a curve is drawn."""

    colour: str
    dash: Sequence[int] = ()
    """One of DASHES."""


class Best(NamedTuple):
    """The value of a metric in one row, such as its best one."""

    metric: str
    value: float
    step: int
    """0: the model before training."""


def is_graded(row: Mapping[str, Any]) -> bool:
    """Pure: return whether the rewards of an evaluation were not all 0 or 1: no share is right.

    The trainer calls such a mean `eval/accuracy` and `eval/pass1`, too.
    """
    return row.get(REWARD) is not None and row.get("eval/pass1") == row.get(REWARD)


def _graded(row: Mapping[str, T]) -> dict[str, T]:
    """Pure: return the row, or a point's sums, without the shares of a graded reward."""
    found = {name: value for name, value in row.items() if not SHARES.fullmatch(name)}
    return {REWARD: row[ACCURACY], **found} if ACCURACY in row else found


class Measured(NamedTuple):
    """What a run has measured of one metric."""

    last: Best
    best: Best | None
    """None if no value is better than another."""
    median: float
    """Of the points."""


Sums = dict[str, tuple[float, int]]
"""Name of a metric → its sum and its number of rows."""


class Points:
    """Rows of metrics, merged to at most MOST_POINTS points."""

    def __init__(self) -> None:
        self.stride = 1
        """Steps of one point."""
        self._points: dict[int, Sums] = {}
        self._is_graded = False
        """As `graded` says of a row."""
        self._best: dict[str, Best] = {}
        self._last: dict[str, Best] = {}

    @property
    def best(self) -> Best | None:
        """The best value of the run's main metric in one row; None without such a metric."""
        return next((self._best[name] for name in MAIN if name in self._best), None)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the metrics of a row that are drawn; a row without a step is left out."""
        if not stored_json.is_count(step := row.get("step")):
            return
        if not self._is_graded and is_graded(row):
            self._grade()
        row = _graded(row) if self._is_graded else row
        values = {
            name: (float(value), 1)
            for name, value in row.items()
            if chart_of(name) and stored_json.is_number(value)
        }
        _merge(self._points.setdefault(step // self.stride, {}), values)
        for name, (value, _) in values.items():
            self._see(name, value, step)
        if len(self._points) > MOST_POINTS:
            self._halve()

    def _see(self, name: str, value: float, step: int) -> None:
        """Take a value for the last and the best one of its metric."""
        if name not in self._last or self._last[name].step <= step:
            self._last[name] = Best(name, value, step)
        chart, before = chart_of(name), self._best.get(name)
        if chart is None or chart.better is None:
            return
        is_better = before is None or chart.better(before.value, value) != before.value
        if is_better or (before and before.step == 0 and value == before.value):
            self._best[name] = Best(name, value, step)

    def measured(self) -> dict[str, Measured]:
        """Return the last, the best and the median value of each metric."""
        names = {name for sums in self._points.values() for name in sums}
        known = {
            name: [
                mean for sums in self._points.values() if (mean := _mean(sums, name)) is not None
            ]
            for name in names & self._last.keys()
        }
        return {
            name: Measured(self._last[name], self._best.get(name), median(values))
            for name, values in known.items()
        }

    def _grade(self) -> None:
        """Rename what earlier rows called an accuracy, since all of their rewards were 0 or 1."""
        self._is_graded = True
        self._points = {place: _graded(sums) for place, sums in self._points.items()}
        for known in (self._best, self._last):
            renamed = [best._replace(metric=name) for name, best in _graded(known).items()]
            known.clear()
            known.update({best.metric: best for best in renamed})

    def go_back(self, step: int) -> None:
        """Drop the points after `step`; the point that has it stays."""
        last = step // self.stride
        self._points = {place: sums for place, sums in self._points.items() if place <= last}
        self._last = {name: one for name, one in self._last.items() if one.step <= step}

    def rows(self, after: int = 0) -> dict[str, Any]:
        """Return the points from step `after` on: their last steps, and the series by name.

        `charts` says how all of them are drawn, those before `after`, too.
        """
        first = after // self.stride
        points = sorted(item for item in self._points.items() if item[0] >= first)
        names = sorted({name for _, sums in points for name in sums})
        ever = {name for sums in self._points.values() for name in sums}
        return {
            "steps": [(place + 1) * self.stride - 1 for place, _ in points],
            "series": {name: [_mean(sums, name) for _, sums in points] for name in names},
            "charts": drawn(ever),
        }

    def _halve(self) -> None:
        points, self._points = self._points, {}
        self.stride *= 2
        for place, sums in points.items():
            _merge(self._points.setdefault(place // 2, {}), sums)


class Curves:
    """The curves of one file. Every method may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._begun = 0
        """How many times the file was read from its beginning."""
        self._begin(None)

    def rows(self, after: int = 0, of: str = "") -> dict[str, Any]:
        """Return the points from step `after` on, all if the reader has those `of` another version.

        A version ends when the file is replaced, or points are merged. Raises OSError.
        """
        with self._lock:
            more, began = self._read(), time.monotonic()
            while more and time.monotonic() - began < READ_SECONDS:
                more = self._read()
            version = f"{self._file}-{self._begun}-{self._points.stride}"
            found = self._points.rows(after if of == version else 0)
            return {"version": version, "more": more, **found}

    def best(self) -> Best | None:
        """Return the best value of the main metric in the rows that were read."""
        with self._lock:
            return self._points.best

    def measured(self) -> dict[str, Measured]:
        """Return what the rows that were read say of each metric."""
        with self._lock:
            return self._points.measured()

    def _begin(self, file: int | None) -> None:
        self._file = file
        self._offset = 0
        self._end = b""
        """The bytes before the offset, by which a change of what was read shows."""
        self._begun += 1
        self._points = Points()
        self._skip = 0
        """Rows until the next that is added."""

    def _read(self) -> bool:
        """Read the next rows; return whether there are more."""
        try:
            file = open_plain(self.path)
        except FileNotFoundError:
            return False
        with file:
            size, inode = file.seek(0, 2), os.fstat(file.fileno()).st_ino
            file.seek(self._offset - len(self._end))
            if inode != self._file or file.read(len(self._end)) != self._end:
                self._begin(inode)  # after a crash, rows of repeated steps are dropped
            file.seek(self._offset)
            data = file.read(READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == READ_BYTES:
            whole = data  # damage, such as a power cut's zeros: no row is as long
        begin = 0
        while begin < len(whole):
            end = whole.find(b"\n", begin + PART_BYTES) + 1 or len(whole)
            self._add_some(whole[begin:end])
            begin = end
        self._offset += len(whole)
        self._end = (self._end + whole)[-END_BYTES:]
        return bool(whole) and self._offset < size

    def _add_some(self, rows: bytes) -> None:
        """Add the next rows, or some of them if there are many for each point."""
        every, count = max(1, self._points.stride // ROWS_OF_POINT), rows.count(b"\n")
        numbers = range(self._skip, count, every)
        self._skip += every * len(numbers) - count
        lines = rows.splitlines() if every == 1 else _chosen(rows, numbers, count)
        for line in lines:
            self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            row = stored_json.parsed(line)
        except ValueError:
            return
        if isinstance(row, dict):
            self._points.add(row)


def _chosen(rows: bytes, numbers: Iterable[int], count: int) -> Iterable[bytes]:
    """Return the rows of about these numbers, of so many, and all rare ones."""
    begins = {rows.rfind(b"\n", 0, len(rows) * n // count) + 1 for n in numbers}
    rare = rows.find(RARE)
    while rare >= 0:
        begins.add(rows.rfind(b"\n", 0, rare) + 1)
        rare = rows.find(RARE, rows.find(b"\n", rare))
    return (rows[begin : rows.find(b"\n", begin)] for begin in sorted(begins))


def _merge(into: Sums, sums: Sums) -> None:
    for name, (total, count) in sums.items():
        before, number = into.get(name, (0.0, 0))
        into[name] = before + total, number + count


def _mean(sums: Sums, name: str) -> float | None:
    total, count = sums.get(name, (0.0, 0))
    return float(f"{total / count:.{DIGITS}g}") if count else None


def styles_of(names: Sequence[str]) -> list[Style]:
    """Pure: return how each metric is drawn: a phase has its colour, the others what is left.

    None repeats in up to len(LINES) * len(DASHES) metrics.
    """
    colours = [PHASES.get(name.removeprefix(TIMING)) if _is_phase(name) else None for name in names]
    phases = [Style(colour) if colour else None for colour in colours]
    all_styles = [
        Style(colour, DASHES[(place // SOLID + turn) % len(DASHES)])
        for turn in range(len(DASHES))
        for place, colour in enumerate(LINES)
    ]
    free = [style for style in all_styles if style.colour not in colours]
    left = cycle([*free, *(style for style in all_styles if style not in [*free, *phases])])
    return [style or next(left) for style in phases]


def _is_phase(name: str) -> bool:
    return name.startswith(TIMING)


def drawn(names: Iterable[str], charts: Sequence[Chart] = CHARTS) -> list[dict[str, Any]]:
    """Pure: return the charts of these metrics as JSON: title, group, and how each is drawn.

    A chart that is cut into several, since it has many metrics, has no two drawn alike.
    """
    found = charts_of(names, charts)
    alike: dict[str, list[str]] = {}
    for chart, own in found:
        alike.setdefault(chart.pattern, []).extend(own)
    styles = {
        name: style
        for whole in alike.values()
        for name, style in zip(whole, styles_of(whole), strict=True)
    }
    return [
        {
            "title": chart.label,
            "group": chart.group,
            "metrics": [
                {"name": name, "label": chart.short(name), **styles[name]._asdict()} for name in own
            ],
        }
        for chart, own in found
    ]
