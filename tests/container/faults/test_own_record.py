"""The check of a job's own record finds what must not happen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.container.faults import own_record

Row = dict[str, Any]


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}.000+00:00"


def attempt(number: int, resume_from: int, second: int) -> Row:
    details = {"resume_from": resume_from}
    return {"kind": "attempt", "attempt": number, "details": details, "at": at(second)}


def row(kind: str, step: int, number: int = 1, second: int = 1, value: float = 0.5) -> Row:
    return {"kind": kind, "step": step, "attempt": number, "at": at(second), "value": value}


STEPS = [row("begin", 0), row("step", 1), row("step", 2), row("saved", 2), row("step", 3)]
AGAIN = [row("begin", 2, 2), row("step", 3, 2), row("step", 4, 2)]


def test_a_record_of_two_attempts_has_no_fault() -> None:
    assert list(own_record.counted([*STEPS, *AGAIN])) == []
    assert list(own_record.repeated([*STEPS, *AGAIN])) == []
    assert list(own_record.begun([*STEPS, *AGAIN], [attempt(1, 0, 0), attempt(2, 2, 5)])) == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([*STEPS, row("step", 5)], "attempt 1 makes step 5 after step 3"),
        ([*STEPS, row("step", 3)], "attempt 1 makes step 3 after step 3"),
        ([*STEPS, *AGAIN, row("step", 4)], "attempt 1 makes step 4 after attempt 2 has begun"),
        ([*STEPS, row("step", 3, 2)], "attempt 2 makes step 3 after step None"),
    ],
)
def test_a_step_that_is_skipped_or_made_beside_the_next_attempt_is_found(
    rows: list[Row], found: str
) -> None:
    assert list(own_record.counted(rows)) == [found]


def test_an_attempt_that_is_told_of_an_older_checkpoint_than_the_newest_is_found() -> None:
    events = [attempt(1, 0, 0), attempt(2, 0, 5)]
    assert list(own_record.begun([*STEPS, row("begin", 0, 2)], events)) == [
        "attempt 2 is to resume from step 0, and 2 was saved"
    ]


def test_an_attempt_that_begins_elsewhere_than_at_its_checkpoint_is_found() -> None:
    events = [attempt(1, 0, 0), attempt(2, 2, 5)]
    assert list(own_record.begun([*STEPS, row("begin", 0, 2)], events)) == [
        "attempt 2 is to resume from step 2, and begins at 0"
    ]


def test_a_step_that_ends_with_another_loss_when_it_is_done_again_is_found() -> None:
    rows = [*STEPS, row("begin", 2, 2), row("step", 3, 2, value=0.25)]
    assert list(own_record.repeated(rows)) == [
        "step 3 has the loss 0.5 in attempt 1, and 0.25 in attempt 2"
    ]
