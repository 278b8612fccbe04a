"""The flight record: of a journal that a real cluster wrote under four faults, and of odd ones."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.journal import append_event, read_events
from entrypoint.commands import report as report_command
from entrypoint.processes import process
from entrypoint.run.flight_record import html, text, time_bars
from entrypoint.run.flight_record import record as report
from entrypoint.run.flight_record import text as report_text
from entrypoint.run.flight_record.record import FlightRecord
from tests.support.flight_events import Clock, part_of
from tests.support.repository import DATA

FOUR_FAULTS = DATA / "journals/four-faults.jsonl"
"""A head and a worker: the driver killed, then frozen, then the worker killed, then the head."""


@pytest.fixture(scope="module")
def recorded() -> FlightRecord:
    return report.from_journal(read_events(FOUR_FAULTS))


def test_every_fault_of_a_real_run_is_there_once_with_its_class_and_answer(
    recorded: FlightRecord,
) -> None:
    assert [(one.failure, one.answer) for one in recorded.failures] == [
        ("unknown", "resume"),
        ("hang", "resume"),
        ("node_lost", "resume"),
        ("head_lost", "start"),
    ]
    evidence = [one.evidence for one in recorded.failures]
    assert evidence[0] == "the driver was ended by signal 9 (Killed)"
    first = next(line for line in report_text.lines(recorded) if line.startswith("  1: "))
    assert first.endswith(": unknown (the driver was ended by signal 9 (Killed))")
    assert evidence[1] == "no step for 5 s"
    assert recorded.outcome == "finished"


def test_noticing_recovery_and_lost_steps_are_measured_for_each_fault(
    recorded: FlightRecord,
) -> None:
    for one in recorded.failures:
        assert 0 < one.noticed_seconds < 15
        assert one.recovery_seconds is not None
        assert 0 < one.recovery_seconds < 60
        assert 0 <= one.steps_lost < 5  # the job saves every fifth step
    assert recorded.failures[1].noticed_seconds > 5  # ROLLCALL_HANG_TIMEOUT was 5 s


def test_attempts_add_up_to_the_steps_of_the_run(recorded: FlightRecord) -> None:
    assert [one.number for one in recorded.attempts] == [1, 2, 3, 4, 5]
    assert [one.ending for one in recorded.attempts] == [
        *("unknown", "hang", "node_lost", "head_lost", "finished")
    ]
    lost = sum(one.steps_lost for one in recorded.failures)
    assert sum(one.steps for one in recorded.attempts) == recorded.steps + lost


def test_all_of_the_wall_time_was_spent_on_something(recorded: FlightRecord) -> None:
    assert sum(recorded.seconds.values()) == pytest.approx(recorded.wall_seconds, abs=0.05)
    assert recorded.effective_time_ratio == pytest.approx(
        recorded.seconds["training"] / recorded.wall_seconds, abs=1e-4
    )
    assert {"roll call", "noticing failures", "start of the job", "no head"} <= set(
        recorded.seconds
    )


def fails_once() -> Clock:
    """Step 3 is done, and lost; a fourth is half done."""
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    clock.steps(1, 1, 2)
    clock.then(5, "checkpoint", 1, step=2)
    clock.steps(1, 3)
    clock.then(50, "failure", 1, failure="node_lost", silent_seconds=8.0)
    clock.then(0, "decision", 1, answer="resume")
    clock.begins(2, from_step=2)
    clock.steps(2, 3, 4)
    clock.then(7, "outcome", outcome="finished")
    return clock


def test_an_attempt_that_ended_for_more_workers_is_no_failure() -> None:
    clock = Clock()
    clock.then(0, "roll")
    clock.then(1, "attempt", 1)
    clock.then(1, "resume", 1, step=0)
    clock.then(1, "step", 1, step=1)
    clock.then(1, "decision", 1, answer="grow")
    clock.then(1, "attempt", 2)
    clock.then(1, "resume", 2, step=1)
    clock.then(1, "step", 2, step=2)
    clock.then(1, "outcome", 2, outcome="finished")
    told = report.from_journal(clock.rows)
    assert [one.ending for one in told.attempts] == ["more workers", "finished"]
    assert told.failures == []


def test_models_that_load_are_a_start_and_no_step_or_evaluation() -> None:
    clock = Clock()
    clock.then(0, "roll")
    clock.then(1, "attempt", 1)
    clock.then(2, "resume", 1, step=0)
    clock.then(60, "ready", 1, step=0)
    clock.then(3, "eval", 1, step=0)
    clock.then(4, "step", 1, step=1)
    clock.then(5, "outcome", 1, outcome="finished")
    record = report.from_journal(clock.rows)
    assert record.seconds["start of the job"] == 62
    assert (record.seconds["evaluation"], record.seconds["training"]) == (3, 4)


def test_a_step_that_a_lost_rank_took_with_it_is_training_only_once() -> None:
    clock = Clock()
    clock.begins(1)
    clock.steps(1, 1, 2)
    clock.then(5, "rank-replaced", 1, step=1)
    clock.steps(1, 2, 3)
    record = report.from_journal(clock.rows)
    assert (record.seconds["training"], record.seconds["steps done again"]) == (305, 100)


def test_time_goes_to_what_it_was_spent_on() -> None:
    record = report.from_journal(fails_once().rows)
    assert record.seconds == {
        "training": 400,
        "steps done again": 100,
        "steps in flight, lost": 42,
        "start of the job": 40,
        "roll call": 20,
        "noticing failures": 8,
        "end of the job": 7,
        "checkpoints": 5,
    }
    assert record.wall_seconds == 622
    assert record.effective_time_ratio == round(400 / 622, 4)
    (failure,) = record.failures
    assert (failure.noticed_seconds, failure.recovery_seconds) == (8, 130)
    assert (failure.steps_lost, failure.answer) == (1, "resume")


def test_an_attempt_that_dies_before_its_first_step_loses_none_again() -> None:
    clock = fails_once()
    clock.rows.pop()  # the outcome
    clock.then(0, "failure", 2, failure="unknown", silent_seconds=0)
    clock.begins(3, from_step=4)
    clock.then(1, "failure", 3, failure="unknown", silent_seconds=0)
    clock.begins(4, from_step=4)
    clock.steps(4, 5)
    assert [one.steps_lost for one in report.from_journal(clock.rows).failures] == [1, 0, 0]


def test_a_run_that_goes_on_is_running_and_its_last_failure_has_no_recovery_yet() -> None:
    clock = fails_once()
    until_failure = [row["kind"] for row in clock.rows].index("decision")
    record = report.from_journal(clock.rows[:until_failure])
    assert record.outcome == "running"
    assert record.failures[0].recovery_seconds is None
    assert "no step since" in "\n".join(report_text.lines(record))


def test_a_failure_that_ended_the_run_is_answered_by_its_outcome() -> None:
    clock = fails_once()
    del clock.rows[[row["kind"] for row in clock.rows].index("decision") :]
    clock.then(0, "outcome", outcome="failed")
    (failure,) = report.from_journal(clock.rows).failures
    assert (failure.answer, failure.decision) == ("stop", "outcome!")


def test_the_days_between_a_stop_and_the_next_start_are_without_a_head_and_no_failure() -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.begins(1)
    clock.steps(1, 1)
    clock.then(1, "outcome", outcome="stopped")
    clock.then(86_400, "start")
    clock.begins(2, from_step=1)
    clock.steps(2, 2)
    record = report.from_journal(clock.rows)
    assert record.seconds["no head"] == 86_400
    assert record.failures == []


def test_a_clock_that_is_set_back_takes_no_time_away() -> None:
    clock = fails_once()
    clock.at -= timedelta(hours=1)
    clock.then(0, "step", 2, step=5)
    assert min(report.from_journal(clock.rows).seconds.values()) >= 0


def test_what_others_wrote_into_the_journal_is_passed_over() -> None:
    rows = fails_once().rows
    odd: list[Any] = [{}, 7, {"at": "noon", "kind": "step"}, {**rows[0], "kind": "check-in"}]
    assert report.from_journal([*odd, *rows]) == report.from_journal(rows)


def journal(run: Path, rows: list[dict[str, Any]]) -> Path:
    run.mkdir()
    (run / "journal.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return run


def test_the_command_says_it_in_text_as_json_and_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = journal(tmp_path / "run", fails_once().rows)
    assert report_command.main([str(run)]) == 0
    text = capsys.readouterr().out
    assert "effective time 64.3%" in text
    assert "noticed after 8 s, next step 2 min 10 s later, 1 step lost" in text
    assert report_command.main([str(run), "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out)["failures"][0]["failure"] == "node_lost"
    assert "64.3%" in (tmp_path / "page.html").read_text()
    assert report_command.main([str(run), "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"the page: {tmp_path / 'page.html'}"


def test_a_torn_last_line_is_passed_over_and_the_next_event_is_whole(tmp_path: Path) -> None:
    run = journal(tmp_path / "run", fails_once().rows[:-1])
    path = run / "journal.jsonl"
    with path.open("a") as file:
        file.write('{"at": "2026-01-01T00:1')
    before = report.from_journal(read_events(path))
    assert before.steps == 4
    append_event(path, "outcome", "the job has finished", {"outcome": "finished"})
    assert report.from_journal(read_events(path)).outcome == "finished"


def test_no_run_and_a_run_without_events_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    assert report_command.main([str(tmp_path / "none")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "is not a run: it has no journal.jsonl; give the run's directory" in said
    run = journal(tmp_path / "run", [])
    assert report_command.main([str(run)]) == ExitCode.RUN_DIR
    assert "its journal has no events" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_and_a_missing_run_are_the_users_to_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = journal(tmp_path / "run", fails_once().rows)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(process, "entrypoints", set)  # other runs live on this machine, too
    assert report_command.main([str(run), "--html", str(tmp_path / "no/page")]) == ExitCode.RUN_DIR
    assert "No such file or directory" in capsys.readouterr().err
    assert report_command.main(["--json"]) == ExitCode.USAGE
    assert "no RUN is given" in capsys.readouterr().err


def test_a_page_goes_through_a_link_or_a_pipe_and_replaces_neither(tmp_path: Path) -> None:
    """`--html /dev/stdout` of root would replace the link that all programs write to."""
    run = journal(tmp_path / "run", fails_once().rows)
    link, file, pipe = tmp_path / "link", tmp_path / "page.html", tmp_path / "pipe"
    link.symlink_to(file)
    assert report_command.main([str(run), "--html", str(link)]) == 0
    assert link.is_symlink()
    assert "64.3%" in file.read_text()
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        assert report_command.main([str(run), "--html", str(pipe)]) == 0
        assert pipe.is_fifo()
        assert "64.3%" in reader.communicate(timeout=30)[0]


class _Page(HTMLParser):
    """Open elements, and all text outside of style."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_well_formed_needs_nothing_else_and_runs_nothing_that_a_log_said(
    recorded: FlightRecord,
) -> None:
    clock = fails_once()
    (failure,) = (row for row in clock.rows if row["kind"] == "failure")
    failure["sentence"] = "node_lost: <script>alert(1)</script>"
    for record in (recorded, report.from_journal(clock.rows)):
        page = _Page()
        page.feed(html.page("a <run>", [part_of(record)]))
        assert (page.open, page.links) == ([], [])
        assert "a <run>: finished" in page.text
        for one in record.failures:
            assert one.evidence in page.text


def test_a_long_run_is_read_in_no_time() -> None:
    def month() -> Iterator[dict[str, Any]]:
        clock = Clock()
        clock.then(0, "start")
        for attempt in range(1, 101):
            clock.begins(attempt, from_step=100 * (attempt - 1))
            clock.steps(attempt, *range(100 * attempt - 99, 100 * attempt + 2), seconds=260)
            clock.then(9, "failure", attempt, failure="node_lost", silent_seconds=9)
        yield from clock.rows

    began = datetime.now(UTC)
    record = report.from_journal(month())
    assert (datetime.now(UTC) - began).total_seconds() < 3
    assert (record.steps, len(record.failures)) == (10_001, 100)
    assert [one.steps_lost for one in record.failures] == [1] * 99 + [0]


def test_what_was_mended_while_the_job_went_on_is_told_and_is_no_failure() -> None:
    clock = fails_once()
    clock.then(1, "rank-replaced", 2, step=4)
    told = report.from_journal(clock.rows)
    assert [(one.attempt, one.kind) for one in told.repairs] == [(2, "rank-replaced")]
    assert len(told.failures) == 1
    assert told.outcome == "finished"
    assert any("rank-replaced!" in line for line in report_text.lines(told))
    assert "rank-replaced!" in html.page("a run", [part_of(told)])


def test_a_run_that_never_came_to_an_attempt_has_a_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    clock.then(0, "start")
    clock.then(9, "refused")
    clock.then(1800, "outcome", outcome="failed", exit_code=69)
    made = report.from_journal(clock.rows)
    assert (made.attempts, made.failures, made.outcome) == ([], [], "failed")
    assert made.seconds == {"roll call": 1809}
    assert any("failed" in line for line in report_text.lines(made))
    assert "attempts:" not in report_text.lines(made)


def test_a_share_of_time_that_is_too_short_for_a_digit_is_not_0_s() -> None:
    assert text.spent(0.004) == "< 0.1 s"
    assert text.spent(0.0) == "0 s"
    shares = time_bars.shares("Time", [("generate", 0.004, "red"), ("train", 0.014, "blue")], 0.018)
    assert "<td>&lt; 0.1 s</td><td>22.2%</td>" in shares
