"""What the console of a head has of the events that a job writes to the journal."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from contract.journal import EventSource, append_event
from entrypoint.job.ray_jobs import JobInfo
from tests.support.world import DIED, FINISHED, World, ends

pytestmark = pytest.mark.usefixtures("no_pauses")

REPAIRS = (
    ("rank-replaced", "The actor lost a process: actor restarted, and step 3 is repeated.", 3),
    ("engine-replaced", "engine-1 was replaced after 4.0 s.", 0),
    ("node-replaced", "c goes on in the place of b.", 0),
)


def tell(world: World, kind: str, sentence: str, *, step: int = 0, attempt: int = 1) -> None:
    """Append an event as the job's own process does."""
    details = {"step": step, "lost": "b"}
    append_event(
        world.run.journal, kind, sentence, details, source=EventSource(attempt=attempt, node="job")
    )


def on_console(caplog: pytest.LogCaptureFixture) -> list[str]:
    events = [one for one in caplog.records if getattr(one, "event", "progress") != "progress"]
    return [one.getMessage() for one in events]


def test_the_console_has_each_repair_inside_an_attempt_once_while_the_job_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen_by: list[str] = []

    def repairs(world: World) -> JobInfo:
        tell(world, "resume", "The run begins.")
        for kind, sentence, step in REPAIRS:
            tell(world, kind, sentence, step=step)
        deadline = time.monotonic() + 10
        while REPAIRS[-1][1] not in on_console(caplog) and time.monotonic() < deadline:
            time.sleep(0.05)
        seen_by.extend(on_console(caplog))
        return ends(FINISHED, at_step=9)(world)

    assert World(tmp_path, repairs).lives().name == "finished"
    told = ["The run begins.", *(sentence for _, sentence, _ in REPAIRS)]
    assert [one for one in seen_by if one in told] == told
    assert [one for one in on_console(caplog) if one in told] == told


def test_the_console_has_every_sentence_of_the_journal_once_but_the_routine_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def fails(world: World) -> JobInfo:
        tell(world, "ready", "The models are loaded.")
        tell(world, "step", "step 1", step=1)
        tell(world, "checkpoint", "checkpoint 1", step=1)
        world.journal.record("service", "a service started again")
        return ends(DIED, at_step=1)(world)

    def goes_on(world: World) -> JobInfo:
        tell(world, "ready", "A process of attempt 1 is still there.", attempt=1)
        tell(world, "export", "The model is written.", attempt=2)
        return ends(FINISHED, at_step=2)(world)

    world = World(tmp_path, fails, goes_on)
    assert world.lives().name == "finished"
    events = [one for one in world.journal.events() if one["kind"] not in ("step", "checkpoint")]
    sentences = [one["sentence"].removeprefix("unknown: ") for one in events]
    told = [one for one in sentences if "attempt 1 is still" not in one]
    assert sorted(on_console(caplog)) == sorted(told)


def test_an_event_of_the_job_is_a_warning_if_its_kind_is_one_and_has_its_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def leaves_out(world: World) -> JobInfo:
        tell(world, "engine-left-out", "engine-2 is left out.", step=7)
        return ends(FINISHED, at_step=9)(world)

    World(tmp_path, leaves_out).lives()
    (record,) = [one for one in caplog.records if one.getMessage() == "engine-2 is left out."]
    assert record.levelno == logging.WARNING
    told = (getattr(record, "event", None), getattr(record, "details", None))
    assert told == ("engine-left-out", {"step": 7, "lost": "b"})
