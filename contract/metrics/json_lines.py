"""Files of a run with JSON lines for each step: metrics.jsonl and samples.jsonl."""

from __future__ import annotations

import json
import math
import os
import re
import time
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contract.files import lines, stored_json
from contract.files.append import append_line
from contract.files.os_errors import with_path
from contract.run_dir import write_atomically

BEGINS = re.compile(rb'\{"step": (\d{1,15}), ')
SETTLED_BYTES = 2**20
"""Rows come nearly in the order of their steps: an evaluation may follow rows of later steps. If so
many bytes have no row to drop, none before them is one."""

Row = Mapping[str, Any]


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
            _drop_at_end(path, lambda step, line: step > resumed_step)

    def log(self, step: int, row: Row) -> None:
        append_line(self._path, json.dumps({"step": step, "at": time.time(), **row}).encode())
        if step != self._thinned and self._path.stat().st_size > self._largest:
            self._thinned = step
            thin(self._path)

    def replace(self, step: int, row: Row, name: str) -> None:
        """Log a row in place of the step's earlier rows that have the key `name`."""
        if self._path.exists():
            _drop_at_end(self._path, lambda of, line: of == step and name in (_row(line) or ()))
        self.log(step, row)


def spread(path: Path, most: int) -> list[Row]:
    """Return the rows of up to `most` steps, the first and the last among them."""
    if not path.exists():
        return []
    with with_path(path), path.open("rb", buffering=lines.BLOCK) as file:
        begins = (BEGINS.match(line) for _, line in lines.forwards(file))
        known = sorted(set(array("q", (int(one[1]) for one in begins if one))))
        last, count = len(known) - 1, min(most, len(known))
        wanted = {known[round(n * last / max(1, count - 1))] for n in range(count)}
        found = (
            _row(line)
            for _, line in lines.forwards(file)
            if (one := BEGINS.match(line)) and int(one[1]) in wanted
        )
        return [row for row in found if row]


def thin(path: Path) -> None:
    """Drop every second of the older half of steps: the newest stay, the oldest become sparse."""
    rows = [(row["step"], line) for line in path.read_bytes().splitlines() if (row := _row(line))]
    steps = sorted({step for step, _ in rows})
    dropped = frozenset(steps[: len(steps) // 2 : 2])
    write_atomically(
        path, "".join(line.decode() + "\n" for step, line in rows if step not in dropped)
    )


def _drop_at_end(path: Path, is_dropped: Callable[[int, bytes], bool]) -> None:
    """Drop rows near the end of a file, and count the damaged lines there in the log.

    `is_dropped` is asked with a row's step and line. The file is read from its end, as far as there
    are rows to drop, and changed in place. After a crash meanwhile, the next attempt drops them.
    """
    kept: list[bytes] = []
    since: list[bytes] = []  # lines before the earliest one that is dropped, so far
    damaged = 0
    with with_path(path), path.open("r+b") as file:
        begin = size = file.seek(0, os.SEEK_END)
        for end, line in lines.backwards(file, incomplete=True):
            if begin - end > SETTLED_BYTES:
                break
            known = BEGINS.match(line)
            is_late = known is not None and is_dropped(int(known[1]), line)
            row = None if is_late else _row(line)  # the rows to drop may be many
            damaged += row is None and not is_late
            if row is not None and not is_dropped(row["step"], line):
                since.append(line)
            else:
                kept, since, begin = kept + since, [], end - len(line)
        if begin < size:
            content = b"".join(line.rstrip(b"\n") + b"\n" for line in reversed(kept))
            os.pwrite(file.fileno(), content, begin)
            os.ftruncate(file.fileno(), begin + len(content))
            os.fsync(file.fileno())
    if damaged:
        what = "1 damaged line is" if damaged == 1 else f"{damaged} damaged lines are"
        print(f"{path}: {what} left out.", flush=True)


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line; None if the line is damaged."""
    try:
        row = stored_json.parsed(line)
    except ValueError:
        return None
    is_row = isinstance(row, dict) and stored_json.is_count(row.get("step"))
    return row if is_row else None
