"""The flight record adds up, whatever the clocks did and however far the run went back."""

from __future__ import annotations

import pytest

from entrypoint.run.flight_record import record as report
from entrypoint.run.flight_record.record import FlightRecord
from entrypoint.run.flight_record.time_accounting import IN_FLIGHT, UNTOLD, USES
from tests.support.flight_events import Clock


def adds_up(record: FlightRecord) -> bool:
    whole = sum(record.seconds.values()) == pytest.approx(record.wall_seconds, abs=0.01)
    return whole and 0 <= (record.effective_time_ratio or 0) <= 1


def goes_back(clock_is_behind: float) -> Clock:
    """Steps 1 to 100 are done, the node is lost, another goes on from 50 and is stopped at 55."""
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    clock.steps(1, *range(1, 101), seconds=10)
    clock.then(9, "failure", 1, failure="node_lost", silent_seconds=9.0)
    clock.then(0, "decision", 1, answer="resume")
    clock.then(-clock_is_behind, "start")
    clock.begins(2, from_step=50)
    clock.steps(2, *range(51, 56), seconds=10)
    clock.then(1, "outcome", outcome="stopped")
    return clock


def test_a_clock_that_was_set_back_makes_no_run_more_effective_than_it_was() -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    clock.steps(1, 1, 2, 3)
    clock.then(-400, "checkpoint", 1, step=3)
    clock.steps(1, 4, 5, 6)
    clock.then(9, "failure", 1, failure="unknown", silent_seconds=9.0)
    clock.begins(2, from_step=6)
    clock.steps(2, 7)
    clock.then(1, "outcome", outcome="finished")
    record = report.from_journal(clock.rows)
    assert adds_up(record)
    assert record.wall_seconds == 30 + 600 + 9 + 30 + 100 + 1
    assert record.effective_time_ratio == round(700 / 770, 4)
    assert record.attempts[0].seconds == 20 + 600 + 9


@pytest.mark.parametrize("clock_is_behind", [0, 7200])
def test_a_run_that_went_back_has_the_steps_from_there_on_alone(clock_is_behind: float) -> None:
    record = report.from_journal(goes_back(clock_is_behind).rows)
    assert adds_up(record)
    assert record.steps == 55
    assert record.failures[0].steps_lost == 50


@pytest.mark.parametrize("clock_is_behind", [0, 7200])
def test_lost_steps_are_no_training_though_the_next_heads_clock_is_behind(
    clock_is_behind: float,
) -> None:
    record = report.from_journal(goes_back(clock_is_behind).rows)
    assert (record.seconds["training"], record.seconds["steps done again"]) == (550, 500)


def test_a_run_that_was_to_go_on_and_made_no_step_has_those_that_it_went_back_to() -> None:
    rows = goes_back(0).rows
    until = max(index for index, row in enumerate(rows) if row["kind"] == "resume")
    assert report.from_journal(rows[: until + 1]).steps == 50


@pytest.mark.parametrize("steps", [4, 400])
def test_a_record_of_many_steps_keeps_as_many_events_as_one_of_few(steps: int) -> None:
    clock = Clock()
    clock.then(0, "start")
    for attempt in (1, 2):
        clock.begins(attempt)
        for step in range(1, steps + 1):
            clock.then(10, "step", attempt, step=step, steps=1)
            clock.then(1, "checkpoint", attempt, step=step)
            clock.then(2, "eval", attempt, step=step)
        clock.then(5, "failure", attempt, failure="unknown", silent_seconds=4.0)
        clock.then(1, "decision", attempt, answer="resume")
    read = report._Read()
    for place, row in enumerate(clock.rows):
        read.add(place, row)
    assert len(read.events()) == 1 + 2 * (3 + 3 + 2)
    record = report.from_journal(clock.rows)
    assert [one.steps for one in record.attempts] == [steps, steps]
    assert [one.seconds for one in record.attempts] == [20 + 13 * steps + 5] * 2
    first, last = record.failures
    assert (first.recovery_seconds, last.recovery_seconds) == (1 + 10 + 20 + 10, None)
    assert (first.steps_lost, first.noticed_seconds) == (steps, 4.0)
    assert record.seconds["steps done again"] == 10 * steps
    assert record.steps == steps


def test_going_back_over_part_of_the_steps_of_one_event_counts_their_share() -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    clock.then(100, "step", 1, step=10, steps=10)
    clock.then(30, "step", 1, step=13, steps=3)
    clock.then(0, "resume", 1, step=11)
    record = report.from_journal(clock.rows)
    assert record.seconds["steps done again"] == 20
    assert record.seconds["training"] == 110


def test_an_attempt_begins_at_the_step_that_the_trainer_has_found_not_at_that_of_the_disk() -> None:
    clock = goes_back(0)
    told = [row for row in clock.rows if row["kind"] == "resume"][-1]
    told["details"]["step"] = 53  # in the memory of another node
    assert [one.resumed_from for one in report.from_journal(clock.rows).attempts] == [0, 53]


def test_an_end_before_the_first_step_leaves_the_effective_time_known() -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.then(0, "attempt", 1, resume_from=0)
    clock.then(15, "outcome", outcome="stopped")
    assert UNTOLD in report.from_journal(clock.rows).seconds
    clock.then(5, "start")
    clock.begins(2)
    clock.steps(2, 1, seconds=50)
    record = report.from_journal(clock.rows)
    assert adds_up(record)
    assert UNTOLD not in record.seconds
    assert record.effective_time_ratio == 0.5


@pytest.mark.parametrize(
    ("before", "use"),
    [
        ([], UNTOLD),
        (["resume"], USES["resume"]),
        (["resume", "ready"], IN_FLIGHT),
    ],
)
def test_an_attempt_that_fails_before_its_first_step_loses_no_steps_in_flight(
    before: list[str], use: str
) -> None:
    clock = Clock()
    clock.then(0, "attempt", 1)
    for kind in before:
        clock.then(0, kind, 1, step=0)
    clock.then(30, "failure", 1, failure="usage", silent_seconds=0.0)
    clock.then(0, "outcome", outcome="failed", exit_code=64)
    assert report.from_journal(clock.rows).seconds == {use: 30.0}
