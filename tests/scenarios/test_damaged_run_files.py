"""Files of the run directory that storage has damaged: whoever reads them goes on."""

from __future__ import annotations

import json
import logging
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.exit_codes import ExitCode
from contract.journal_file.lines import event_of, line_of
from contract.progress import Phase, Progress
from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.cluster import prometheus
from entrypoint.commands import report as report_command
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.failures import resume_check
from entrypoint.job.failures.hang import HangWatch
from entrypoint.node import finished_run
from entrypoint.run import lease
from entrypoint.run import token as run_token
from entrypoint.run.flight_record import html, run_end, text
from entrypoint.run.flight_record import record as report
from entrypoint.run.journal import Journal
from entrypoint.run.lease import Lease
from tests.support.damage import damaged, flipped
from tests.support.flight_events import part_of

DETAILS: dict[str, dict[str, Any]] = {
    "start": {"incarnation": "a"},
    "attempt": {"submission_id": "s", "resume_from": 3},
    "resume": {"step": 3},
    "checkpoint-skipped": {"step": 4, "fault": "torn"},
    "step": {"step": 4, "reward": 0.5},
    "failure": {"failure": "node_lost", "exit_code": None, "silent_seconds": 1.5, "step": 4}
    | {"evidence": "a node is gone", "place": "/job/model.py:12"},
    "decision": {"answer": "resume"},
    "rank-replaced": {"step": 3, "role": "policy"},
    "outcome": {"outcome": "finished", "exit_code": 0, "command": "f00d"},
}
EVENTS = [
    {
        "at": "2026-01-01T00:00:01.000+00:00",
        "node": "head",
        "epoch": 2,
        "attempt": 1,
        "kind": kind,
        "sentence": f"{kind} was",
        "details": details,
    }
    for kind, details in DETAILS.items()
]
LINES = st.one_of([damaged(event) for event in EVENTS])
FUZZED = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


def read_by_everyone(journal: Journal) -> report.FlightRecord:
    """What a head, an attempt and `report` make of the events."""
    assert journal.attempts() >= 1
    finished_run.before(journal, "f00d")
    resume_check.mismatch(3, [event for event in journal.events() if event["attempt"] == 1], 4)
    record = report.from_journal(journal.events())
    assert "".join([*text.lines(record), html.page("a run", [part_of(record)])]).encode()
    return record


@FUZZED
@given(st.lists(LINES, min_size=1, max_size=4))
def test_lines_of_the_journal_that_are_no_events_are_passed_over(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    whole = [json.dumps(EVENTS[1]).encode(), json.dumps(EVENTS[4]).encode()]
    path.write_bytes(b"\n".join([*lines, *whole, b""]))
    assert read_by_everyone(Journal(path, "head")).wall_seconds >= 0


@settings(FUZZED, max_examples=300)
@given(st.data())
def test_no_bit_of_a_line_that_was_written_changes_an_event_unseen(data: st.DataObject) -> None:
    """Not its epoch, for one: a greater one would void all that comes after it."""
    event = data.draw(st.sampled_from(EVENTS))
    line = line_of(event)
    assert event_of(line) == event_of(line + b"\r") == event
    changed = event_of(flipped(line, data.draw(st.integers(0, 8 * len(line) - 1))))
    assert changed is None or event.items() <= changed.items()


def test_damaged_lines_are_counted_and_said_once(
    run: RunFiles, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(run.journal, "head")
    journal.record("attempt", "attempt 1 starts", resume_from=0)
    with run.journal.open("ab") as file:
        file.write(b"\xff\xfe\n5\n{}\n" + json.dumps({**EVENTS[0], "epoch": "6"}).encode() + b"\n")
    journal.record("attempt", "attempt 2 starts", resume_from=0)
    with run.journal.open("ab") as file:
        file.write(b'{"at": "2026-')  # under way: no damage yet
    caplog.clear()
    assert [journal.attempts(), journal.attempts()] == [2, 2]
    assert caplog.messages == [f"{run.journal}: 4 damaged lines are skipped (2, 3, 4, 5)"]
    assert report_command.main([str(run.root)]) == ExitCode.FINISHED
    assert "2 attempts" in capsys.readouterr().out


PROGRESS = Progress(step=4, total_steps=9, attempt=1, reward=0.5, checkpoint=3, in_memory=4)


@FUZZED
@given(damaged(PROGRESS.as_dict()))
def test_a_progress_file_that_is_damaged_is_shown_as_far_as_it_is_whole(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "progress.json"
    path.write_bytes(content)
    if progress := Progress.read(path):
        assert json.dumps(progress.as_dict(), allow_nan=False).encode()
        assert console.sentence(progress).encode()
        state = {"progress": progress.as_dict(), "expected_workers": 0, "present": 0}
        state |= {"outcome": None, "phase": "training", "nodes": []}
        assert prometheus.text(prometheus.Scrape(state=state))
        assert progress.step + (progress.checkpoint or 0) + (progress.in_memory or 0) >= 0


@FUZZED
@given(damaged({"attempt": 1, "step": 4, "done": "update"}))
def test_a_sign_of_life_that_is_damaged_is_none(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / ".phase"
    path.write_bytes(content)
    watch = HangWatch(None)
    for phase in (Phase(1, 3, "step"), Phase.read(path), Phase(1, 5, "step")):
        assert watch.look(PROGRESS, phase) is None


LEASE = {"incarnation": "a", "host": "h", "address": "10.0.0.1", "boot_id": "b", "beat": 3}


@settings(FUZZED, max_examples=20)
@given(damaged(LEASE) | damaged({"host": "h", "over": True}))
def test_a_lease_that_is_damaged_is_succeeded(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "SILENCE_SECONDS", 0.0)
        patch.setattr(lease, "POLL_SECONDS", 0.0)
        leases = tmp_path_factory.mktemp("run") / ".leases"
        leases.mkdir()
        for name in ("1", "٣", "007", "x"):
            (leases / name).write_bytes(content)
        assert ip_address(lease.address(leases) or "::")
        with Lease(leases) as later:
            assert later.claim.epoch == 2


@pytest.fixture
def given_settings(run: RunFiles) -> Settings:
    name = f"damaged-{os.getpid()}"
    environ = {"ROLLCALL_RUN_DIR": str(run.root), "ROLLCALL_NODE_NAME": name}
    return read_settings({**environ, "ROLLCALL_RECIPE": "command"}, ["true"])


@FUZZED
@given(content=st.binary(max_size=60) | st.sampled_from([b"", b"\n", b"\xff" * 48, b"a" * 15]))
def test_a_token_file_that_holds_no_token_is_made_anew(
    given_settings: Settings, run: RunFiles, content: bytes
) -> None:
    run.token.write_bytes(content)
    token = run_token.for_head(given_settings)
    assert len(token) >= 16
    assert token.isascii()
    assert token.isprintable()
    assert run_token.for_client(given_settings) == token
    assert run_token.for_head(given_settings) == token


def test_a_whole_token_file_is_kept(
    given_settings: Settings, run: RunFiles, caplog: pytest.LogCaptureFixture
) -> None:
    first = run_token.for_head(given_settings)
    assert run_token.for_head(given_settings) == first
    run.token.write_text(first[:7])
    with caplog.at_level(logging.WARNING):
        assert run_token.for_head(given_settings) != first
    assert f"{run.token} is damaged" in caplog.text


RESULT = {"outcome": "finished", "exit_code": 0, "attempts": 2, "steps": 9, "reward_last": 0.5}


@FUZZED
@given(damaged(RESULT))
def test_a_result_that_is_damaged_leaves_the_journals_word_of_the_end(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    run = RunFiles(tmp_path_factory.getbasetemp() / "ended")
    run.root.mkdir(exist_ok=True)
    run.journal.write_text(json.dumps(EVENTS[-1]) + "\n")
    run.result.write_bytes(content)
    found = run_end.read(run)
    assert found is not None
    assert json.dumps(found.row())
    assert "\n".join(found.lines()).encode().startswith(b"the run has ended (finished")
