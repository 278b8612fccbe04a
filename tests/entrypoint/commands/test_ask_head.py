"""`status`, `stop` and `logs` of a run that has ended: nobody listens any more."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from contract.exit_codes import RESUMES, ExitCode
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.cluster.server import ControlServer
from entrypoint.commands import ask_head, logs, node_shell, report, status_text
from entrypoint.commands.arguments import parse
from entrypoint.commands.head_client import NoAnswerError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import supervisor
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.recipes import base as recipes
from entrypoint.job.run_context import RunContext
from entrypoint.processes.inbox import Inbox
from entrypoint.run.failure_classes import (
    REMEDIES,
    REMEDY_OF_HUB,
    FailureClass,
    service_of,
)
from entrypoint.run.journal import Journal
from tests.support.control import TOKEN, Head

FINISHED = Outcome("finished", ExitCode.FINISHED, "the job has finished")
STOPPED = Outcome("stopped", ExitCode.STOPPED, "SIGTERM")
RECIPE = recipes.load("command")
NO_CONTROL = cast(ControlServer, None)
"""What is written down at the end asks nothing of it."""
Command = Callable[[Settings, argparse.Namespace], int]


def lived(run: RunFiles, *outcomes: Outcome | None) -> None:
    """A head after the other, each with its outcome; None for one that was killed."""
    journal = Journal(run.journal, "head")
    run.logs.mkdir(parents=True, exist_ok=True)
    (run.logs / "head.log").write_text("a line\n")
    for outcome in outcomes:
        journal.record("start", "this is the head")
        journal.record("attempt", "attempt 1 starts")
        Progress(step=24).write(run.progress)
        if outcome:
            context = RunContext(settings(run), RECIPE, journal, NO_CONTROL, Inbox())
            supervisor.record(outcome, context, 60.0)


def settings(run: RunFiles, port: int = 9) -> Settings:
    """Of one who asks at a port where nothing listens, if at none else."""
    return read_settings(
        {
            "ROLLCALL_TOKEN": TOKEN,
            "ROLLCALL_HEAD_ADDRESS": "127.0.0.1",
            "ROLLCALL_CONTROL_PORT": str(port),
            "ROLLCALL_RUN_DIR": str(run.root),
        }
    )


@pytest.mark.parametrize("command", [ask_head.status, ask_head.stop])
@pytest.mark.parametrize(
    ("outcome", "to_do"), [(FINISHED, ""), (STOPPED, f"what to do: {RESUMES}\n")]
)
def test_status_and_stop_tell_the_outcome(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: Command,
    outcome: Outcome,
    to_do: str,
) -> None:
    run = RunFiles(tmp_path)
    lived(run, None, outcome)
    assert command(settings(run), parse("status", [])) == 0
    told, _, ended = capsys.readouterr().out.rpartition(", ended ")
    assert told == (
        f"the run has ended ({outcome.name}, exit code {int(outcome.exit_code)}): "
        f"{outcome.sentence}\n{to_do}24 steps, 2 attempts"
    )
    assert datetime.fromisoformat(ended.strip()).tzinfo is not None
    assert command(settings(run), parse("status", ["--json"])) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["phase"] == "ended"
    assert row["outcome"] == {"outcome": outcome.name, "exit_code": outcome.exit_code}
    assert row["result"]["steps"] == 24


def test_status_and_report_say_which_signal_has_stopped_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    journal = Journal(run.journal, "head")
    context = RunContext(settings(run), RECIPE, journal, NO_CONTROL, Inbox())
    for signal in ("SIGTERM", ""):
        lived(run, None)
        for kind, why in (("stop", "more workers"), ("attempt", ""), ("stop", signal)):
            journal.record(kind, "it goes on", why=why)
        supervisor.record(Outcome("stopped", ExitCode.STOPPED, "step 24 is saved"), context, 60.0)
        assert ask_head.status(settings(run), parse("status", [])) == 0
        assert report.main([str(tmp_path)]) == 0
        told = [line for line in capsys.readouterr().out.splitlines() if "cause:" in line]
        assert told == [f"cause: {signal}"] * 2 if signal else not told


def failed(run: RunFiles) -> None:
    """The second attempt of a run, which its driver's error has ended."""
    journal = Journal(run.journal, "head")
    journal.record("start", "this is the head", resume="cd /job && rollcall train.py")
    for journal.attempt in (1, 2):
        journal.record("attempt", f"attempt {journal.attempt} starts")
        said, place = "ValueError: no such column: prompt", "/job/data.py:12"
        sentence = f"unknown: {said}"
        journal.record("failure", sentence, failure="unknown", evidence=said, place=place)
    run.logs.mkdir()
    (run.logs / "attempt-2.log").write_text("ValueError: no such column: prompt\n")
    context = RunContext(settings(run), RECIPE, journal, NO_CONTROL, Inbox())
    given_up = "the job died, and 2 attempts in a row brought no new step: giving up"
    supervisor.record(Outcome("failed", ExitCode.JOB_FAILED, given_up), context, 60.0)


def test_status_and_report_begin_with_outcome_cause_remedy_and_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    failed(run)
    given_up = "the job died, and 2 attempts in a row brought no new step: giving up"
    why = [
        "cause: ValueError: no such column: prompt",
        "place: /job/data.py:12",
        f"what to do: {REMEDIES['unknown']}",
        "to start its head again: cd /job && rollcall train.py",
        f"log: {run.logs / 'attempt-2.log'}",
    ]
    assert ask_head.status(settings(run), parse("status", [])) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"the run has ended (failed, exit code 70): {given_up}"
    assert rest[:5] == why
    assert report.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[:6] == [f"failed: {given_up}", *why]
    for row in (status_row(run, capsys), report_row(run, capsys)):
        assert row["cause"] == "ValueError: no such column: prompt"
        assert row["resume"] == "cd /job && rollcall train.py"
        assert row["place"] == "/job/data.py:12"
        assert row["to_do"] == REMEDIES["unknown"]
        assert row["log"] == str(run.logs / "attempt-2.log")


@pytest.mark.parametrize(
    ("said", "to_do"),
    [
        ("owner/model is not a directory here and not whole in the cache /c", REMEDY_OF_HUB),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load", REMEDY_OF_HUB),
        ("the reward server http://h:5000 does not answer", REMEDIES["service"]),
    ],
)
def test_the_remedy_of_a_service_is_that_of_the_one_which_did_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, to_do: str
) -> None:
    run = RunFiles(tmp_path)
    journal = Journal(run.journal, "head")
    journal.record("attempt", "attempt 1 starts")
    about = {"failure": "service", "service": service_of(FailureClass.SERVICE, said)}
    journal.record("failure", f"service: {said}", **about)
    journal.record("outcome", "giving up", outcome="failed", exit_code=70)
    assert status_row(run, capsys)["to_do"] == to_do


def test_a_run_that_failed_before_its_first_attempt_names_the_heads_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    run.logs.mkdir()
    (run.logs / "head.log").write_text("Ray did not start\n")
    no_ray = Outcome("failed", ExitCode.RETRY, "Ray did not start")
    lived(run, None, no_ray)
    row = status_row(run, capsys)
    assert row["to_do"].startswith("Start it again with the same run directory.")
    assert row["log"] == str(run.logs / "head.log")


@pytest.mark.parametrize("command", ["status", "logs", "events", "wait", "report", "bundle"])
def test_without_a_word_and_a_setting_the_newest_run_here_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ROLLCALL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(node_shell, "_nodes", lambda _: {})
    monkeypatch.setattr(sys, "argv", ["rollcall", command])
    none = "no RUN is given, and there is none in ./run or ./runs: give the run's directory"
    wrong = none if command in ("report", "bundle") else "ROLLCALL_RUN_DIR"
    assert entrypoint.main() != ExitCode.FINISHED
    assert wrong in capfd.readouterr().err
    lived(RunFiles(tmp_path / "runs" / "one" / "run"), FINISHED)
    assert entrypoint.main() == ExitCode.FINISHED
    said = capfd.readouterr().err
    assert said.startswith("No RUN is given: this is runs/one/run, the only run in ./runs\n")
    newer = RunFiles(tmp_path / "run")
    lived(newer, FINISHED)
    ahead = time.time() + 60
    os.utime(newer.journal, (ahead, ahead))
    for archive in tmp_path.glob("*.tar.gz"):
        archive.unlink()
    assert entrypoint.main() == ExitCode.FINISHED
    said = capfd.readouterr().err
    assert said.startswith(
        "No RUN is given: this is run, the newest of 2 runs in ./run and ./runs\n"
    )
    monkeypatch.setenv("ROLLCALL_RUN_DIR", str(tmp_path / "runs" / "one" / "run"))
    for archive in tmp_path.glob("*.tar.gz"):
        archive.unlink()
    assert entrypoint.main() == ExitCode.FINISHED
    assert "newest" not in capfd.readouterr().err
    monkeypatch.delenv("ROLLCALL_RUN_DIR")
    for archive in tmp_path.glob("*.tar.gz"):
        archive.unlink()
    monkeypatch.setattr(sys, "argv", ["rollcall", command, "runs/one"])
    assert entrypoint.main() == ExitCode.FINISHED, "its only run is in its folder `run`"
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("ROLLCALL_RUN_DIR", str(tmp_path / "runs" / "one"))
    monkeypatch.setattr(sys, "argv", ["rollcall", command])
    for archive in tmp_path.glob("*.tar.gz"):
        archive.unlink()
    assert entrypoint.main() == ExitCode.FINISHED, "the variable means the same as the word"
    monkeypatch.delenv("ROLLCALL_RUN_DIR")
    monkeypatch.setenv("ROLLCALL_RUNDIR", "elsewhere")
    for archive in tmp_path.glob("*.tar.gz"):
        archive.unlink()
    is_refused = command not in ("report", "bundle")
    assert entrypoint.main() == (ExitCode.USAGE if is_refused else ExitCode.FINISHED)
    near = "ROLLCALL_RUNDIR='elsewhere' is not a setting: remove it, or spell it as ROLLCALL_RUN_D"
    assert capfd.readouterr().err.count(near) == 1


def status_row(run: RunFiles, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    ask_head.status(settings(run), parse("status", ["--json"]))
    row: dict[str, Any] = json.loads(capsys.readouterr().out)
    return row


def report_row(run: RunFiles, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report.main([str(run.root), "--json"])
    row: dict[str, Any] = json.loads(capsys.readouterr().out)
    return row


def test_status_and_report_say_what_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    lived(run, FINISHED)
    told = {"reward_first": 0.55, "reward_last": 0.8984, "eval_before": 0.367, "eval_after": 0.871}
    run.result.write_text(json.dumps(told))
    learned = "reward 0.550 → 0.898, held-out accuracy 36.7% → 87.1%"
    assert ask_head.status(settings(run), parse("status", [])) == 0
    assert learned in capsys.readouterr().out.splitlines()
    assert report.main([str(tmp_path)]) == 0
    assert learned in capsys.readouterr().out.splitlines()
    run.result.write_text(json.dumps(told | {"eval_before": -2.0, "eval_after": 3.729}))
    assert report.main([str(tmp_path)]) == 0
    assert "reward 0.550 → 0.898, held-out reward -2.000 → 3.729" in capsys.readouterr().out
    run.result.write_text(json.dumps(told | {"eval_after": None, "steps": 1}))
    assert report.main([str(tmp_path)]) == 0
    once = "reward 0.898, held-out accuracy 36.7% before the first step"
    assert once in capsys.readouterr().out.splitlines()
    run.result.write_text(json.dumps(told | {"eval_before": None, "reward_last": "much"}))
    assert ask_head.status(settings(run), parse("status", [])) == 0
    assert "→" not in capsys.readouterr().out


def test_every_class_of_failure_has_a_remedy() -> None:
    by_head = {FailureClass.SCALED_UP, FailureClass.STRAGGLER}
    no_end = {FailureClass.FINISHED, FailureClass.PREEMPTED} | by_head
    assert {name for name, remedy in REMEDIES.items() if remedy} == set(FailureClass) - no_end


def test_logs_tells_the_outcome_after_the_ends_of_the_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    lived(run, None)
    assert logs.logs(settings(run), parse("logs", [])) == 0
    assert capsys.readouterr().out == "==> head.log\na line\n\n"
    lived(run, FINISHED)
    assert logs.logs(settings(run), parse("logs", [])) == 0
    said = capsys.readouterr().out
    assert said.startswith("==> head.log\na line\n\n==> result.json\nthe run has ended (finished")


@pytest.mark.parametrize("words", [[], ["attempt-1"], ["-f"], ["-f", "attempt-1"], ["-n", "9"]])
def test_rays_own_lines_are_folded_unless_all_are_asked_for(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    lived(run, FINISHED)
    rays = "2026-11-29 14:54:37,148\tINFO job_manager.py:587 -- Runtime env is setting up.\n"
    (run.logs / "attempt-1.log").write_text(f"{rays}Step 1 of 2\n")
    assert logs.logs(settings(run), parse("logs", words)) == 0
    folded = capsys.readouterr().out
    assert "Ray's own lines: 1 (rollcall logs --all shows them)\nStep 1 of 2\n" in folded
    assert rays not in folded
    assert logs.logs(settings(run), parse("logs", [*words, "--all"])) == 0
    assert f"{rays}Step 1 of 2\n" in capsys.readouterr().out


@pytest.mark.parametrize("lives", [(), (None,), (STOPPED, None)])
def test_a_run_that_was_started_again_since_or_has_no_outcome_has_not_ended(
    tmp_path: Path, lives: tuple[Outcome | None, ...]
) -> None:
    run = RunFiles(tmp_path)
    lived(run, *lives)
    with pytest.raises(NoAnswerError, match="no head answers") as caught:
        ask_head.status(settings(run), parse("status", []))
    assert caught.value.exit_code == ExitCode.UNREACHABLE


def test_the_head_of_another_run_on_the_port_hides_no_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path / "run")
    run.root.mkdir()
    lived(run, FINISHED)
    other = Head(tmp_path)
    with other.control:
        mine = settings(run, other.port)
        asked = read_settings({**mine.environ, "ROLLCALL_TOKEN": "the-token-of-this-run"})
        assert ask_head.status(asked, parse("status", [])) == 0
    assert "finished" in capsys.readouterr().out


def test_a_run_whose_result_is_damaged_tells_what_its_journal_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFiles(tmp_path)
    lived(run, FINISHED)
    run.result.write_bytes(b"\xff")
    assert ask_head.status(settings(run), parse("status", [])) == 0
    assert capsys.readouterr().out == "the run has ended (finished): the job has finished\n"


@pytest.mark.parametrize(
    ("head", "expected", "said"),
    [
        ("head", 0, "head: training; a cluster of one node"),
        ("gn1", 2, "head gn1: training; 1 of 2 workers"),
    ],
)
def test_a_state_names_the_head_once_and_counts_workers_only_if_there_are_any(
    head: str, expected: int, said: str
) -> None:
    state = {
        **{"head": head, "phase": "training", "present": min(expected, 1), "nodes": []},
        **{"expected_workers": expected, "missing": [], "outcome": None, "page": "http://h"},
    }
    assert status_text.state_sentences(state)[0] == said
    full = {"phase": "waiting for storage", "sentence": "/run: No space left on device"}
    (first, *_) = status_text.state_sentences(state | full)
    assert first == said.replace("training", "waiting for storage: /run: No space left on device")
    asked = status_text.state_sentences({**state, "is_stopping": True})[0]
    assert asked == said.replace("training", "training, a stop was asked")


@pytest.mark.parametrize(
    ("phase", "present", "said"),
    [
        ("training", 1, "attempt 2 still runs, with 1 of 2 workers"),
        ("roll call", 0, "the job waits, with 0 of 2 workers: ROLLCALL_MIN_WORKERS lets it go on"),
        (
            "roll call",
            1,
            "the job waits for 5 min 0 s (ROLLCALL_REPLACE_TIMEOUT), then goes",
        ),
        ("training", 2, "another node has its place"),
        ("waiting for a job (rollcall submit)", 1, ""),
    ],
)
def test_status_says_what_the_job_does_while_a_worker_is_away(
    phase: str, present: int, said: str
) -> None:
    lost = {"node": "gn2", "address": "10.0.0.2", "joined": True, "present": False}
    state = {
        **{"head": "head", "phase": phase, "present": present, "expected_workers": 2},
        **{"nodes": [lost | {"silent_seconds": 9.0, "warnings": []}], "missing": []},
        **{"outcome": None, "page": "http://h", "attempt": 2, "failures": 1, "is_starting": False},
        **{"min_workers": 1, "replace_timeout": 300.0},
    }
    state["last_failure"] = {"cause": "it died", "place": "", "to_do": "Read it.", "in_vain": 1}
    told = status_text.state_sentences(state)
    of_attempt = told.index("attempt 2: 1 failure so far, no checkpoint yet")
    assert told[of_attempt + 1 :][:2] == ["last failure: it died", "what to do: Read it."]
    found = [line for line in told if "meanwhile" in line]
    assert len(found) == bool(said)
    assert all(line.startswith(f"  meanwhile: {said}") for line in found)


def test_status_of_a_run_that_no_head_leads_names_the_commands_that_tell_of_it(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "vm")
    for kind in ("start", "attempt"):
        journal.record(kind, "a trainer without a head", by="trainer")
    own = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)})
    with pytest.raises(NoAnswerError, match=r"has no head to ask \(.*rollcall report") as error:
        ask_head.status(own, parse("status", []))
    assert error.value.exit_code == ExitCode.UNREACHABLE
