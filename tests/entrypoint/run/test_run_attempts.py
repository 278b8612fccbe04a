"""What the head says of a run is of the attempt that runs, and of no earlier one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from contract.journal import NO_REWARD, EventSource, append_event, read_events, timestamp
from contract.progress import Progress
from entrypoint.run import run_attempts
from entrypoint.run.flight_record import text
from entrypoint.run.flight_record.record import from_journal

FAST = Progress(
    step=3, total_steps=60, attempt=1, tokens_per_second=2490.0, step_seconds=2.0, eta_seconds=90.0
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    begin(path, 1)
    return path


def begin(journal: Path, attempt: int) -> None:
    append_event(journal, "attempt", "it starts", source=EventSource(attempt=attempt))


def fail(journal: Path) -> None:
    append_event(journal, "failure", "it died", {"failure": "node_lost"})


def speeds(found: run_attempts.RunAttempts) -> tuple[float, float, float]:
    told = found.progress
    assert told is not None
    return told.tokens_per_second, told.step_seconds, told.eta_seconds


def test_an_attempt_that_tells_its_steps_has_a_speed(journal: Path) -> None:
    found = run_attempts.read(journal, FAST, trains=True)
    assert (found.attempt, found.failures, found.is_starting) == (1, 0, False)
    assert speeds(found) == (2490.0, 2.0, 90.0)


def test_the_next_attempt_starts_without_the_speed_of_the_one_that_died(journal: Path) -> None:
    fail(journal)
    begin(journal, 2)
    found = run_attempts.read(journal, FAST, trains=True)
    assert (found.attempt, found.failures, found.is_starting) == (2, 1, True)
    assert speeds(found) == (0.0, 0.0, 0.0)
    assert found.progress is not None
    assert (found.progress.step, found.progress.total_steps) == (3, 60)


def test_why_no_attempt_makes_steps_is_told_until_one_makes_some(journal: Path) -> None:
    def told(progress: Progress | None, *, trains: bool = True) -> object:
        return run_attempts.read(journal, progress, trains=trains).last_failure

    assert told(None) is None
    for attempt in (1, 2):
        fail(journal)
        begin(journal, attempt + 1)
        to_do = "Look at the lost node and its network."
        failure = {"cause": "it died", "place": "", "to_do": to_do, "in_vain": attempt}
        assert told(None) == told(None, trains=False) == failure
    assert told(replace(FAST, attempt=3)) is None
    append_event(journal, "step", "…", {"step": 4}, source=EventSource(attempt=3))
    assert told(replace(FAST, attempt=3), trains=False) is None


def test_nothing_has_a_speed_while_nothing_trains(journal: Path) -> None:
    found = run_attempts.read(journal, FAST, trains=False)
    assert (speeds(found), found.is_starting) == ((0.0, 0.0, 0.0), False)


def test_the_time_says_whose_a_progress_without_an_attempt_is(journal: Path) -> None:
    first = replace(FAST, attempt=0, at=timestamp())
    assert not run_attempts.read(journal, first, trains=True).is_starting
    time.sleep(0.005)  # times in the journal have milliseconds
    fail(journal)
    begin(journal, 2)
    assert run_attempts.read(journal, first, trains=True).is_starting
    time.sleep(0.005)
    assert not run_attempts.read(journal, replace(first, at=timestamp()), trains=True).is_starting


def test_the_steps_that_are_lost_are_those_that_the_report_counts(journal: Path) -> None:
    steps_and_backs = [("step", 1), ("step", 2), ("step", 3), ("resume", 1), ("resume", 1)]
    for kind, step in [*steps_and_backs, ("step", 2), ("rank-replaced", 1), ("step", 2)]:
        append_event(journal, kind, "…", {"step": step}, source=EventSource(attempt=1))
    found = run_attempts.read(journal, FAST, trains=True)
    assert found.steps_lost == 3
    record = from_journal(read_events(journal))
    assert (record.steps, record.steps_lost) == (2, found.steps_lost)
    assert "2 steps kept of 5 made in" in "\n".join(text.lines(record))


def test_steps_that_are_not_made_again_are_not_kept(journal: Path) -> None:
    first, second = EventSource(attempt=1), EventSource(attempt=2)
    append_event(journal, "step", "…", {"step": 3}, source=first)
    fail(journal)
    begin(journal, 2)
    append_event(journal, "resume", "…", {"step": 1}, source=second)
    found = run_attempts.read(journal, FAST, trains=True)
    assert found.progress is not None
    record = from_journal(read_events(journal))
    assert (record.steps, record.steps_lost) == (found.progress.step, found.steps_lost) == (1, 2)
    append_event(journal, "step", "…", {"step": 2}, source=second)
    made = run_attempts.read(journal, replace(FAST, step=2, attempt=2), trains=True).progress
    assert made is not None
    assert made.step == 2


def test_a_command_that_tells_no_steps_runs_from_its_begin_and_is_not_starting(
    tmp_path: Path,
) -> None:
    journal, source = tmp_path / "journal.jsonl", EventSource(attempt=1)
    append_event(journal, "attempt", "it starts", {"tells_steps": False}, source=source)
    silent = run_attempts.read(journal, None, trains=True)
    assert (silent.is_starting, silent.tells_steps) == (False, False)
    assert silent.seconds is not None
    assert silent.seconds < 60
    assert run_attempts.read(journal, FAST, trains=True).tells_steps
    assert run_attempts.read(journal, None, trains=False).seconds is None


def test_samples_without_a_reward_are_of_the_newest_attempt(journal: Path) -> None:
    append_event(journal, NO_REWARD, "2 of 8", {"step": 1}, source=EventSource(attempt=1))
    assert run_attempts.read(journal, FAST, trains=True).as_dict()["no_reward"] == "2 of 8"
    begin(journal, 2)
    assert run_attempts.read(journal, FAST, trains=True).no_reward == ""


def test_a_run_without_attempts_starts_none(tmp_path: Path) -> None:
    found = run_attempts.read(tmp_path / "journal.jsonl", None, trains=True)
    assert found == run_attempts.RunAttempts(0, 0, False, None)
