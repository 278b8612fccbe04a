"""Events of a journal, at times that a test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from entrypoint.run.flight_record.read_run import Part
from entrypoint.run.flight_record.record import FlightRecord


class Clock:
    """Writes events at times that a test sets."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)
        self.rows: list[dict[str, Any]] = []

    def then(self, seconds: float, kind: str, attempt: int | None = None, **details: Any) -> None:
        self.at += timedelta(seconds=seconds)
        row = {"at": self.at.isoformat(), "node": "head", "attempt": attempt, "kind": kind}
        self.rows.append({**row, "sentence": f"{kind}!", "details": details})

    def begins(self, attempt: int, from_step: int = 0) -> None:
        self.then(10, "roll", present=[], expected=0)
        self.then(0, "attempt", attempt, resume_from=from_step)
        self.then(20, "resume", attempt, step=from_step)

    def steps(self, attempt: int, *numbers: int, seconds: float = 100) -> None:
        for number in numbers:
            self.then(seconds, "step", attempt, step=number)


def part_of(record: FlightRecord) -> Part:
    """A run of which nothing but the record is known."""
    return Part(name="run", record=record, state=record.outcome, sentence=record.sentence)
