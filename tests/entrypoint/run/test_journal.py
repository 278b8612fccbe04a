"""The run's history on disk: what is written is there, and what is torn does no harm."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from contract.journal import EventSource, append_event, journal_writer, read_events
from contract.redaction import MASK
from entrypoint.commands import events as events_command
from entrypoint.config.read import read_settings
from entrypoint.job.failures import classes
from entrypoint.job.failures.classes import AttemptResult
from entrypoint.run.failure_classes import FailureClass
from entrypoint.run.flight_record import html
from entrypoint.run.flight_record import record as report
from entrypoint.run.journal import Journal
from tests.support.flight_events import part_of

SECRET = "hf_nobody_may_read_this"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl", "head")


def test_an_event_is_a_line_and_a_sentence_on_the_console(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    journal.attempt = 2
    journal.record("roll", "2 of 2 workers are there", present=["a", "b"])
    (line,) = journal.path.read_text().splitlines()
    event = json.loads(line)
    assert len(event.pop("crc")) == 8
    assert event.pop("at").endswith("+00:00")
    assert event == {
        "node": "head",
        "epoch": None,
        "attempt": 2,
        "kind": "roll",
        "sentence": "2 of 2 workers are there",
        "details": {"present": ["a", "b"]},
    }
    assert [record.message for record in caplog.records] == ["2 of 2 workers are there"]


@pytest.mark.parametrize(("kind", "level"), [("failure", "WARNING"), ("roll", "INFO")])
def test_what_went_wrong_is_a_warning(
    journal: Journal, caplog: pytest.LogCaptureFixture, kind: str, level: str
) -> None:
    caplog.set_level(logging.INFO)
    journal.record(kind, "so it is")
    assert [record.levelname for record in caplog.records] == [level]


@pytest.mark.parametrize(("outcome", "level"), [("failed", "ERROR"), ("finished", "INFO")])
def test_a_failed_end_is_an_error(
    journal: Journal, caplog: pytest.LogCaptureFixture, outcome: str, level: str
) -> None:
    caplog.set_level(logging.INFO)
    journal.record("outcome", "the end", outcome=outcome)
    assert [record.levelname for record in caplog.records] == [level]


def test_a_long_failure_that_comes_again_is_cut_and_the_failed_end_names_the_last(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    why = f"owner/model is not a directory here {'and not in the cache ' * 9}"
    for journal.attempt in (1, 2):
        journal.record("failure", f"service: {why}", failure="service")
    journal.record("outcome", "giving up", outcome="failed")
    journal.attempt = 3
    journal.record("outcome", "storage is gone", outcome="failed")
    first, again, end, of_no_attempt = (record.message for record in caplog.records)
    assert first == f"service: {why}"
    assert again == f"{first[:80].rstrip()}… (as before)"
    assert end == f"giving up. The last failure: {why}"
    events = [event["sentence"] for event in journal.events()]
    assert events == [first, first, "giving up", "storage is gone"]
    assert of_no_attempt == "storage is gone", "the attempt after that failure did not fail"


def test_the_console_leaves_out_the_class_of_an_unknown_failure(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    journal.record("failure", "unknown: rank 1 was ended by SIGKILL", failure="unknown")
    journal.record("failure", "hang: no step for 60 s", failure="hang")
    said = [record.message for record in caplog.records]
    assert said == ["rank 1 was ended by SIGKILL", "hang: no step for 60 s"]
    first = next(iter(journal.events()))
    assert first["sentence"] == "unknown: rank 1 was ended by SIGKILL"
    assert events_command.sentence(first).endswith(" head rank 1 was ended by SIGKILL")


def test_attempts_are_counted_over_all_heads_of_the_run(journal: Journal) -> None:
    assert journal.attempts() == 0
    journal.record("attempt", "attempt 1 starts")
    journal.record("failure", "the job died")
    later = Journal(journal.path, "another-head")
    later.record("attempt", "attempt 2 starts")
    assert (journal.attempts(), later.attempts()) == (2, 2)


def test_the_console_lacks_what_others_wrote_in_the_attempt_and_not_what_was_recorded(
    journal: Journal,
) -> None:
    journal.attempt = 2
    journal.record("service", "it started again")
    for attempt, sentence in ((2, "it started again"), (1, "late"), (None, "chosen")):
        append_event(journal.path, "service", sentence, source=EventSource(attempt=attempt))
    events = list(journal.events())
    assert [journal.lacks_on_console(one) for one in events] == [False, True, False, True]


def test_events_are_found_by_kind_oldest_first(journal: Journal) -> None:
    for kind, sentence in (("start", "1"), ("roll", "2"), ("start", "3")):
        journal.record(kind, sentence)
    assert [event["sentence"] for event in journal.events("start")] == ["1", "3"]
    assert [event["sentence"] for event in journal.events()] == ["1", "2", "3"]


def test_a_line_torn_by_a_crash_costs_that_line_alone(journal: Journal) -> None:
    journal.record("attempt", "attempt 1 starts")
    with journal.path.open("a") as file:
        file.write('{"kind": "attempt", "sen')
    journal.record("start", "a head again")
    journal.record("attempt", "attempt 2 starts")
    assert [event["sentence"] for event in journal.events()] == [
        "attempt 1 starts",
        "a head again",
        "attempt 2 starts",
    ]


def test_head_and_driver_write_at_once_and_no_line_is_lost(journal: Journal) -> None:
    def drive() -> None:
        for step in range(50):
            append_event(
                journal.path, "step", "x" * 300, {"step": step}, source=EventSource(node="driver")
            )

    driver = threading.Thread(target=drive)
    driver.start()
    for number in range(50):
        journal.record("check-in", str(number))
    driver.join(20)
    assert len(list(read_events(journal.path))) == 100


def test_a_run_directory_that_takes_no_event_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Journal(tmp_path / "gone" / "journal.jsonl", "head").record("start", "so it begins")


def test_a_secret_that_the_drivers_last_line_quotes_is_in_no_journal_and_on_no_page(
    tmp_path: Path,
) -> None:
    settings = read_settings({"HF_TOKEN": SECRET})
    journal = Journal(tmp_path / "journal.jsonl", "head", secrets=settings.secrets)
    result = AttemptResult(
        status="FAILED", exit_code=1, message=f"Job failed\nLoginError: bearer {SECRET}\n"
    )
    evidence = classes.explain(result, FailureClass.UNKNOWN).sentence
    assert SECRET in evidence
    journal.record("attempt", "attempt 1 starts", resume_from=0)
    journal.record("failure", f"unknown: {evidence}", failure="unknown", seen=[{"by": evidence}])
    assert SECRET not in journal.path.read_text()
    (failed,) = journal.events("failure")
    masked = f"LoginError: bearer {MASK}"
    assert failed["sentence"] == f"unknown: {masked}"
    assert failed["details"] == {"failure": "unknown", "seen": [{"by": masked}]}
    assert SECRET not in html.page("a run", [part_of(report.from_journal(journal.events()))])


def test_the_driver_masks_what_its_environment_keeps_secret(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    tell = journal_writer(journal.path)
    tell("reward-server", f"http://me:pass@rewards answers no more: {SECRET}", step=3)
    (event,) = journal.events()
    assert event["sentence"] == f"http://me:{MASK}@rewards answers no more: {MASK}"
    assert event["details"] == {"step": 3}
