"""Files of a run with JSON lines for each step: metrics.jsonl and samples.jsonl."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contract.files import stored_json
from contract.files.append import append_line
from contract.run_dir import write_atomically


class JsonLines:
    """Appends rows, each with its step. Rows after a resumed step are dropped first."""

    def __init__(self, path: Path, resumed_step: int, *, largest: float = math.inf) -> None:
        """`largest`: bytes of the file. Above it, some of the older steps are dropped.

        They are dropped once for each step: rows of one step may be larger than `largest`.
        """
        self._path = path
        self._largest = largest
        self._thinned: int | None = None
        """The step at which steps were last dropped."""
        if path.exists():
            _keep(path, lambda row: row["step"] <= resumed_step)

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        append_line(self._path, json.dumps({"step": step, "at": time.time(), **row}).encode())
        if step != self._thinned and self._path.stat().st_size > self._largest:
            self._thinned = step
            thin(self._path)

    def replace(self, step: int, row: Mapping[str, Any], name: str) -> None:
        """Log a row in place of the step's earlier rows that have the key `name`."""
        if self._path.exists():
            _keep(self._path, lambda old: old["step"] != step or name not in old)
        self.log(step, row)


def thin(path: Path) -> None:
    """Drop every second of the older half of steps: the newest stay, the oldest become sparse."""
    steps = sorted({row["step"] for row in map(_row, path.read_bytes().splitlines()) if row})
    older = steps[: len(steps) // 2]
    dropped = frozenset(older[::2])
    _keep(path, lambda row: row["step"] not in dropped)


def _keep(path: Path, is_wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Keep the wanted rows. Damaged lines are dropped, and counted in the log."""
    lines = path.read_bytes().splitlines()
    rows = [_row(line) for line in lines]
    if damaged := rows.count(None):
        what = "1 damaged line is" if damaged == 1 else f"{damaged} damaged lines are"
        print(f"{path}: {what} left out.", flush=True)
    kept = [line for line, row in zip(lines, rows, strict=True) if row and is_wanted(row)]
    if len(kept) < len(lines):
        write_atomically(path, "".join(line.decode() + "\n" for line in kept))


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line; None if the line is damaged."""
    try:
        row = stored_json.parsed(line)
    except ValueError:
        return None
    is_row = isinstance(row, dict) and stored_json.is_count(row.get("step"))
    return row if is_row else None
