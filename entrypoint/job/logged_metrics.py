"""Rows of `RUN/metrics.jsonl` from what the log of another program's job tells.

So the page, the report and the list of runs have curves of any program that prints its numbers.
A file that the program itself writes is left alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from contract import lease
from contract.files import stored_json
from contract.files.plain_files import open_plain
from contract.metrics import names as metric_names
from contract.metrics.json_lines import JsonLines

SOURCE, FROM_LOG = "source", "log"
"""Key and value that the rows have which were made from a log."""
LONGEST_ROW = 2**16
MOST_WAITING = 10_000
"""Rows that wait while storage does not answer; then the oldest are lost."""
SHORTEST_SECONDS = 0.05
"""Between two lines: the log comes in pieces, so that less says nothing of a step."""


class _Row(NamedTuple):
    step: int
    metrics: Mapping[str, float]
    is_anew: bool
    """The program has begun a training anew: rows from this step on are of the one before."""


@dataclass(slots=True)
class LoggedMetrics:
    """The metrics of one attempt. `read` may run in another thread than `write`."""

    path: Path
    claim: lease.Claim | None
    clock: Callable[[], float] = time.monotonic
    _lines: JsonLines | None = None
    _is_another: bool = False
    """The program itself writes the file."""
    _waiting: list[_Row] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _first: int | None = None
    """The first step that this attempt told."""
    _newest: dict[str, int] = field(default_factory=dict)
    """Metric → the newest step that has it."""
    _pace: tuple[int, float, float | None] | None = None
    """Step, time and tokens so far, when a step of the training was told last."""

    def read(self, step: int, told: Mapping[str, float]) -> None:
        """Take what a line tells of a step. What an earlier line has told of it stays."""
        row = metric_names.row_of(told)
        is_back = any(self._newest.get(name, -1) > step for name in row)
        is_anew = is_back and self._first is not None and step <= self._first
        if is_anew:
            self._newest = {}
        row = {name: row[name] for name in row if self._newest.get(name, -1) < step}
        if not row:
            return
        self._first = step if self._first is None else min(self._first, step)
        self._newest.update(dict.fromkeys(row, step))
        if any(name.startswith("train/") for name in row):
            row = {**self._paced(step, told), **row}
        with self._lock:
            self._waiting.append(_Row(step, row, is_anew))
            del self._waiting[:-MOST_WAITING]

    def write(self) -> None:
        """Append the rows that wait. Raises SupersededError if a later head owns the run."""
        with self._lock:
            rows, self._waiting = self._waiting, []
        if not rows or self._is_another:
            return
        written = 0
        try:
            lease.check(self.claim)
            for row in rows:
                self._append(row)
                written += 1
        except OSError:  # such as storage that is away: they are tried again
            with self._lock:
                self._waiting[:0] = rows[written:]
                del self._waiting[:-MOST_WAITING]

    def _append(self, row: _Row) -> None:
        """Append a row. A training's first one drops the rows of the steps that it repeats."""
        if self._lines is None or row.is_anew:
            self._is_another = not _is_from_log(self.path)
            if self._is_another:
                return
            self._lines = JsonLines(self.path, row.step - 1)
        self._lines.log(row.step, {**row.metrics, SOURCE: FROM_LOG})

    def _paced(self, step: int, told: Mapping[str, float]) -> dict[str, float]:
        """Return the time of a step and the tokens a second since the last row of training."""
        now, tokens = self.clock(), told.get("num_tokens")
        before, self._pace = self._pace, (step, now, tokens)
        if before is None or step <= before[0] or now - before[1] < SHORTEST_SECONDS:
            return {}
        seconds = now - before[1]
        found = {"timing/step": seconds / (step - before[0])}
        if tokens is not None and before[2] is not None and tokens > before[2]:
            found["perf/tokens_per_second"] = (tokens - before[2]) / seconds
        return found


def _is_from_log(path: Path) -> bool:
    """Return whether the file's first row is made from a log, or there is none. Raises OSError."""
    try:
        with open_plain(path) as file:
            first = file.readline(LONGEST_ROW)
    except FileNotFoundError:
        return True
    with suppress(ValueError):
        row = stored_json.parsed(first)
        return isinstance(row, dict) and row.get(SOURCE) == FROM_LOG
    return not first
