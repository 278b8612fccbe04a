"""A command's steps: what it tells in progress.json alone is in the journal, and in the report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from contract.journal import EventSource, append_event
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.job import reported_steps
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.job.reported_steps import ReportedSteps
from entrypoint.run.flight_record import record as report
from entrypoint.run.flight_record import time_accounting
from entrypoint.run.journal import Journal
from tests.support.world import DIED, FINISHED, Act, World

pytestmark = pytest.mark.usefixtures("no_pauses")


def tells(info: JobInfo, steps: Sequence[int], **more: int) -> Act:
    """A command that writes these steps, one each tenth of a second, and ends."""

    def act(world: World) -> JobInfo:
        for step in steps:
            temporary = world.run.root / "progress.tmp"
            temporary.write_text(json.dumps({"step": step, **more}))
            temporary.replace(world.run.progress)
            time.sleep(0.1)
        return info

    return act


def told(world: World) -> list[tuple[int | None, str, int]]:
    events = world.journal.events("resume", "step")
    return [(one["attempt"], one["kind"], one["details"]["step"]) for one in events]


def test_the_report_of_a_command_has_its_steps_and_its_effective_time(tmp_path: Path) -> None:
    world = World(tmp_path, tells(FINISHED, range(13)))
    assert world.lives().name == "finished"
    record = report.from_journal(world.journal.events())
    assert record.steps == 12
    assert [one.steps for one in record.attempts] == [12]
    assert (record.effective_time_ratio or 0) > 0.2


def test_steps_that_a_later_attempt_does_again_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported_steps, "EVERY_SECONDS", 0.0)
    dies, ends = tells(DIED, range(1, 7), checkpoint=3), tells(FINISHED, range(4, 11))
    world = World(tmp_path, dies, ends)
    assert world.lives().name == "finished"
    record = report.from_journal(world.journal.events())
    assert record.steps == 10
    assert [one.steps for one in record.attempts] == [6, 7]
    assert [one.steps_lost for one in record.failures] == [3]
    assert record.seconds[time_accounting.AGAIN] > 0


def test_a_trainer_that_records_its_own_steps_is_left_alone(tmp_path: Path) -> None:
    def trainer(world: World) -> JobInfo:
        number = len(world.jobs.submitted)
        for step in range(1, 9):
            append_event(
                world.run.journal, "step", "own", {"step": step}, source=EventSource(attempt=number)
            )
            tells(FINISHED, [step])(world)
        return FINISHED

    world = World(tmp_path, trainer)
    assert world.lives().name == "finished"
    assert set(world.sentences("step")) == {"own"}
    assert world.sentences("resume") == []


def test_a_trainer_that_corrects_progress_before_its_first_step_records_its_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trainer(world: World) -> JobInfo:
        tells(FINISHED, [4])(world)
        append_event(world.run.journal, "resume", "own", {"step": 4}, source=EventSource(attempt=1))
        append_event(world.run.journal, "step", "own", {"step": 5}, source=EventSource(attempt=1))
        return tells(FINISHED, [5])(world)

    world = World(tmp_path, trainer)
    monkeypatch.setattr(type(world.context.recipe), "tells_phases", True)
    tells(FINISHED, [904])(world)  # of a run directory that was put back
    assert world.lives().name == "finished"
    assert world.sentences("resume") == world.sentences("step") == ["own"]


def test_of_a_thousand_steps_a_second_an_event_every_ten_seconds_is_recorded(
    tmp_path: Path,
) -> None:
    now = 0.0
    journal = Journal(RunFiles(tmp_path).journal, "head")
    steps = ReportedSteps(journal, 0, 0, clock=lambda: now)
    for step in range(60_001):
        now = step / 1000
        steps.see(Progress(step=step))
    steps.close()
    events = [event["details"] for event in journal.events("step")]
    assert 6 <= len(events) <= 8
    assert events[-1]["step"] == sum(event["steps"] for event in events) == 60_000


def test_the_last_step_before_a_hang_is_recorded_while_the_job_hangs(tmp_path: Path) -> None:
    """Not at its end: the silence would count as a step."""
    now = 0.0
    journal = Journal(RunFiles(tmp_path).journal, "head")
    steps = ReportedSteps(journal, 0, 0, clock=lambda: now)
    for now in (0.0, 1.0, 11.0):
        steps.see(Progress(step=min(2, 1 + int(now))))
    assert [event["details"]["step"] for event in journal.events("step")] == [1, 2]


@pytest.mark.parametrize(
    ("resume_from", "before", "first_seen", "start"),
    [
        (0, 0, 0, 0),
        (0, 0, 57, 0),  # quick steps: the first look comes late
        (30, 37, 33, 30),
        (0, 230, 201, 200),  # a checkpoint of its own, which it has not told
        (0, 230, 231, 230),
        (0, 230, 1, 0),
    ],
)
def test_where_an_attempt_goes_on(
    resume_from: int, before: int, first_seen: int, start: int
) -> None:
    assert reported_steps.start(resume_from, before, first_seen) == start


def test_progress_without_a_time_has_its_files(tmp_path: Path) -> None:
    """Else what an earlier attempt left would look new each time that it is read."""
    path = RunFiles(tmp_path).progress
    path.write_text('{"step": 3}')
    before = Progress.read(path)
    time.sleep(0.01)
    assert Progress.read(path) == before
    path.write_text('{"step": 3}')
    assert Progress.read(path) != before


def test_storage_that_takes_no_event_for_a_while_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported_steps, "EVERY_SECONDS", 0.0)
    journal = Journal(tmp_path / "gone" / "journal.jsonl", "head")
    steps = ReportedSteps(journal, 0, 0)
    steps.see(Progress(step=1))
    (tmp_path / "gone").mkdir()
    steps.see(Progress(step=2))
    assert [event["details"] for event in journal.events("step")] == [{"step": 2, "steps": 2}]


def test_the_journal_has_what_a_job_says_of_its_steps_and_each_evaluation_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported_steps, "EVERY_SECONDS", 0.0)
    journal = Journal(RunFiles(tmp_path).journal, "head")
    steps = ReportedSteps(journal, 0, 0)
    steps.see(Progress(step=1, loss=2.5))
    steps.see(Progress(step=2, loss=1.5, reward=0.5))
    steps.see(Progress(step=2, loss=1.5, reward=0.5, eval=0.75))
    steps.close()
    told = [(event["kind"], event["details"]) for event in journal.events("step", "eval")]
    assert told == [
        ("step", {"step": 1, "steps": 1, "loss": 2.5}),
        ("step", {"step": 2, "steps": 1, "loss": 1.5, "reward": 0.5}),
        ("eval", {"step": 2, "accuracy": 0.75}),
    ]


def test_an_evaluation_of_an_earlier_attempt_is_not_told_again(tmp_path: Path) -> None:
    journal = Journal(RunFiles(tmp_path).journal, "head")
    steps = ReportedSteps(journal, 4, 6)
    steps.see(Progress(step=5, eval=0.75))
    steps.close()
    assert [event["details"]["step"] for event in journal.events("step")] == [5]
    assert list(journal.events("eval")) == []
