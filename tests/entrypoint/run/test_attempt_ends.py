"""A head that dies in silence is one failure for the report, `status`, the page and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from contract.journal import EventSource, append_event
from entrypoint.run import run_attempts
from entrypoint.run.attempt_ends import HEAD_LOST, INTERRUPTED
from entrypoint.run.flight_record import record as report
from entrypoint.run.flight_record.time_accounting import Tally
from tests.support.flight_events import Clock

BEGINS = ("start", "attempt", "step")
DETAILS: Mapping[str, Mapping[str, Any]] = {
    "failure": {"failure": "hang"},
    "outcome": {"outcome": "stopped"},
    "grow": {"answer": "grow"},
    "resume": {"answer": "resume"},
    "step": {"step": 1},
}


def kind_of(name: str) -> str:
    return "decision" if name in ("grow", "resume") else name


@pytest.mark.parametrize(
    ("names", "failures"),
    [
        (BEGINS, []),
        ((*BEGINS, "start"), [HEAD_LOST]),
        ((*BEGINS, "start", "head-moved", "attempt"), [HEAD_LOST]),
        ((*BEGINS, "start", "start", "attempt"), [HEAD_LOST]),
        ((*BEGINS, *BEGINS, *BEGINS), [HEAD_LOST, HEAD_LOST]),
        ((*BEGINS, "failure", "start", "attempt"), ["hang"]),
        ((*BEGINS, "failure", "resume", "attempt", "start"), ["hang", HEAD_LOST]),
        ((*BEGINS, "outcome", "start", "attempt"), []),
        ((*BEGINS, INTERRUPTED, "start", "attempt"), []),
        ((*BEGINS, "grow", "start", "attempt"), []),
    ],
    ids=lambda value: " ".join(value) or "none",
)
def test_a_head_that_was_lost_in_an_attempt_counts_once_and_an_orderly_end_does_not(
    tmp_path: Path, names: Sequence[str], failures: list[str]
) -> None:
    clock, journal, tally, attempt = Clock(), tmp_path / "journal.jsonl", Tally(), 0
    for name in names:
        kind, details = kind_of(name), DETAILS.get(name, {})
        attempt += kind == "attempt"
        clock.then(1, kind, attempt or None, **details)
        append_event(journal, kind, name, details, source=EventSource(attempt=attempt))
        tally.add(datetime.fromisoformat(clock.rows[-1]["at"]), kind, details)
    assert [one.failure for one in report.from_journal(clock.rows).failures] == failures
    assert run_attempts.read(journal, None, trains=True).failures == len(failures)
    assert sorted(tally.failures.elements()) == sorted(failures)
