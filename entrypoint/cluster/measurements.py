"""What a scrape of the metrics reads of a run: little, however long the run is.

Of the journal it reads what is new, of `metrics.jsonl` the end.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from contract.files import epochs, stored_json
from contract.run_dir import RunFiles
from entrypoint.cluster.event_stream import next_events
from entrypoint.run import log_files
from entrypoint.run.flight_record.time_accounting import Tally

READ_SECONDS = 0.5
"""About the time that one scrape may take to read: the next scrape reads the rest."""
MOST_ROWS = 20
"""Rows of metrics, the newest: evaluations have rows of their own."""
A_STEP = "timing/step"
"""Is in the row of a step."""


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of the file system that has the run directory."""

    free: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    tally: Tally | None = None
    """None until the whole journal was read once: a part has wrong sums."""
    row: Mapping[str, float] = field(default_factory=dict)
    """The newest step's row of metrics."""
    space: Space | None = None


class Measuring:
    """Measures runs, one at a time. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._history: _History | None = None
        """Of the run that was asked for last."""

    def of(self, run: RunFiles) -> Measurements:
        """Return what there is to measure now. Raises OSError from storage."""
        with self._lock:
            if self._history is None or self._history.journal != run.journal:
                self._history = _History(run.journal)
            tally = self._history.tally()
        return Measurements(tally=tally, row=_newest_row(run.metrics), space=_space(run.root))


class _History:
    """Counts the events of one journal, each once."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._begin(None)

    def _begin(self, file: int | None) -> None:
        self._file = file
        self._offset = 0
        self._epoch = 0
        self._tally = Tally()

    def tally(self) -> Tally | None:
        """Return the tally of the whole journal; None if reading it takes longer than now."""
        began = time.monotonic()
        while self._read():
            if time.monotonic() - began > READ_SECONDS:
                return None
        return self._tally.snapshot()

    def _read(self) -> bool:
        """Count the next events; return whether there are more."""
        try:
            found = self.journal.stat()
        except FileNotFoundError:
            self._begin(None)
            return False
        if found.st_ino != self._file or found.st_size < self._offset:
            self._begin(found.st_ino)
        if found.st_size == self._offset:
            return False
        self._offset, entries, more = next_events(self.journal, self._offset)
        for _, event in entries:
            if epochs.is_in_force(event.get("epoch"), self._epoch):
                self._epoch = event.get("epoch") or self._epoch
                at = datetime.fromisoformat(event["at"])
                self._tally.add(at, event["kind"], event["details"])
        return more


def _newest_row(path: Path) -> dict[str, float]:
    rows = log_files.last_rows(path, MOST_ROWS)
    newest: dict[str, object] = next((row for row in reversed(rows) if A_STEP in row), {})
    return {name: value for name, value in newest.items() if stored_json.is_number(value)}


def _space(directory: Path) -> Space | None:
    try:
        usage = shutil.disk_usage(directory)
    except FileNotFoundError:
        return None
    return Space(usage.free, usage.total)
