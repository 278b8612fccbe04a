"""What a head makes of the run directory that it finds, before it starts anything."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract import lease as contract_lease
from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint import __main__ as entrypoint
from entrypoint.commands import cli
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.config.settings import Settings
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.supervisor import Supervisor
from entrypoint.node import head, ray_command_line, start_again
from entrypoint.node.existing_ray.cluster import ExistingRay
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes.inbox import Inbox, StopAsked, UnfitRayError
from entrypoint.run import lease
from entrypoint.run import token as run_token
from entrypoint.run.journal import Journal
from tests.support.control import answers
from tests.support.waiting import eventually


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


@pytest.fixture
def taken() -> Iterator[int]:
    """A control port on which no head can listen: it ends there, with everything decided."""
    with socket.create_server(("", 0)) as listener:
        yield int(listener.getsockname()[1])


def variables(run: RunFiles, port: int) -> dict[str, str]:
    return {
        "ROLLCALL_RUN_DIR": str(run.root),
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_CONTROL_PORT": str(port),
        "ROLLCALL_NODE_NAME": f"head-{os.getpid()}",
        "ROLLCALL_RAY_TEMP_DIR": f"/tmp/rollcall-head-{os.getpid()}",
    }


def serve(run: RunFiles, port: int, *job: str) -> int:
    settings = read_settings(variables(run, port), job)
    return lives(settings, Inbox())


def lives(settings: Settings, inbox: Inbox) -> int:
    code = head.serve(settings, Head(0, 0, "a test"), {}, inbox)
    assert isinstance(code, int)
    return code


def finish(run: RunFiles) -> None:
    """As the head that was here last did it."""
    fingerprint = json.loads(run.run.read_text())["fingerprint"]
    Journal(run.journal, "head").record(
        "outcome", "the job has finished", outcome="finished", exit_code=0, command=fingerprint
    )


def test_the_first_head_gives_the_run_its_identity_and_a_later_one_keeps_it(
    run: RunFiles, taken: int
) -> None:
    assert serve(run, taken, "python", "train.py") == ExitCode.RETRY
    identity = json.loads(run.run.read_text())
    assert identity["recipe"] == "command"
    assert set(identity["versions"]) >= {"python", "ray"}
    assert run.token.stat().st_mode & 0o777 == 0o600
    token = run.token.read_text()
    assert serve(run, taken, "python", "train.py") == ExitCode.RETRY
    assert json.loads(run.run.read_text()) == identity
    assert run.token.read_text() == token
    events = list(read_events(run.journal))
    assert [event["kind"] for event in events] == ["start", "start"]
    assert "without saying so" not in events[0]["sentence"]
    silent = f"the head before it ({events[0]['node']}) ended without saying so, silent for "
    assert silent in events[1]["sentence"]
    again = start_again.command(
        read_settings(variables(run, taken), ["true"]), socket.gethostname()
    )
    assert [event["details"]["resume"] for event in events] == [again, again]


def test_a_head_with_another_command_records_its_start_first(run: RunFiles, taken: int) -> None:
    serve(run, taken, "python", "train.py")
    serve(run, taken, "python", "other.py")
    kinds = [event["kind"] for event in read_events(run.journal)]
    assert kinds == ["start", "start", "command"]


def test_a_finished_run_is_not_begun_again(
    run: RunFiles, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    serve(run, taken, "python", "train.py")
    finish(run)
    assert serve(run, taken, "python", "train.py") == ExitCode.FINISHED
    assert "a new run needs another ROLLCALL_RUN_DIR" in caplog.messages[-1]


def test_a_finished_run_goes_on_with_another_command(
    run: RunFiles, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    serve(run, taken, "python", "train.py")
    finish(run)
    assert serve(run, taken, "python", "train.py", "--longer") == ExitCode.RETRY
    assert "this run was begun with another command: --longer is new. " in caplog.text


def test_where_leases_are_lost_the_next_heads_events_count_all_the_same(
    run: RunFiles, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 0.3)
    for _ in range(3):
        serve(run, taken, "python", "train.py")
    shutil.rmtree(run.leases)
    serve(run, taken, "python", "train.py")
    assert [event["kind"] for event in read_events(run.journal)] == ["start"] * 4
    assert [path.name for path in run.leases.iterdir()] == ["4"]


def test_the_lease_is_given_back_however_the_head_ends(run: RunFiles, taken: int) -> None:
    serve(run, taken, "true")
    assert contract_lease.read(run.leases / "1").get("over")
    assert serve(run, taken, "true") == ExitCode.RETRY


def test_a_token_that_was_given_is_not_written_down(
    run: RunFiles, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_start_sentence", lambda *_: "begun with correct-horse-battery")
    given = {"ROLLCALL_RUN_DIR": str(run.root), "ROLLCALL_CONTROL_PORT": str(taken)}
    settings = read_settings(given | {"ROLLCALL_TOKEN": "correct-horse-battery"}, ["true"])
    head.serve(settings, Head(0, 0, "a test"), {}, Inbox())
    assert not run.token.exists()
    written = "".join(path.read_text() for path in run.root.iterdir() if path.is_file())
    assert "begun with" in written
    assert "correct-horse-battery" not in written


@pytest.fixture
def idle_ray(run: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that does nothing."""
    ray = run.root / "ray"
    ray.write_text("#!/bin/sh\nexec sleep 60\n")
    ray.chmod(0o755)
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: (str(ray),))
    monkeypatch.setattr(HeadRay, "wait_ready", lambda self: None)


@pytest.mark.usefixtures("idle_ray")
def test_a_head_without_a_job_leads_those_that_are_submitted_until_it_is_stopped(
    run: RunFiles, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    led: list[tuple[str, tuple[str, ...]]] = []
    before: list[tuple[str, ...] | None] = []

    def lead(supervisor: Supervisor) -> Outcome:
        led.append((supervisor.run.job, supervisor.rendezvous.job.job))
        before.append(supervisor.rendezvous.present)
        supervisor.rendezvous.present = ("gn2",)
        return Outcome("finished", ExitCode.FINISHED, "the job has finished")

    monkeypatch.setattr(Supervisor, "supervise", lead)
    ready = threading.Event()
    monkeypatch.setattr(HeadRay, "wait_ready", lambda self: ready.wait(60))
    inbox, codes = Inbox(), list[int]()
    environ = variables(run, free_port) | {"ROLLCALL_WAIT_FOR_JOBS": "1"}
    settings = read_settings(environ)

    def live() -> None:
        codes.append(lives(settings, inbox))

    living = threading.Thread(target=live)
    living.start()
    eventually(lambda: answers(free_port), 60)
    submit = cli.parse(["submit", "--no-wait", "--", "true", "1"])
    assert entrypoint._ask(submit, environ) == 0  # before Ray answers
    assert led == []
    ready.set()
    eventually(lambda: bool(led), 60)
    assert entrypoint._ask(submit, environ) == 0
    eventually(lambda: len(led) == 2, 60)
    inbox.put(StopAsked("SIGTERM"))
    living.join(60)
    assert codes == [ExitCode.STOPPED]
    assert led == [("job-1", ("true", "1")), ("job-2", ("true", "1"))]
    assert before == [None, ("gn2",)]  # the second job waits for no worker that was missing
    kinds = [event["kind"] for event in read_events(run.journal)]
    of_jobs = sorted(["job-submitted", "job-started", "job-ended"] * 2)
    assert (kinds[0], kinds[-1], sorted(kinds[1:-1])) == ("start", "outcome", of_jobs)
    assert json.loads((run.jobs / "job-1" / "result.json").read_text())["outcome"] == "finished"


def test_a_node_beside_an_existing_ray_says_so_and_shows_its_token_to_no_shell(
    run: RunFiles, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    def refuse(ray: ExistingRay) -> None:
        raise UnfitRayError("Ray is 2.54.0", ExitCode.UNFIT)

    shown: list[str] = []
    monkeypatch.setattr(run_token, "show_to_shells", shown.append)
    monkeypatch.setattr(ExistingRay, "wait_ready", refuse)
    there = {"ROLLCALL_RAY_ADDRESS": "http://ray-head:8265", "EXPECTED_WORKERS": "2"}
    environ = variables(run, free_port) | there
    del environ["ROLLCALL_RAY_TEMP_DIR"]
    settings = read_settings(environ, ["true"])
    assert head.serve(settings, Head(2, 2, "a test"), {}, Inbox()) == ExitCode.UNFIT
    assert shown == []
    start, outcome = (event["sentence"] for event in read_events(run.journal))
    assert start == (
        "this node supervises in the Ray cluster at http://ray-head:8265; it waits for 2 nodes "
        "besides Ray's head"
    )
    assert outcome == "Ray is 2.54.0"


@pytest.mark.usefixtures("idle_ray")
def test_a_run_is_finished_for_the_command_that_finished_it(
    run: RunFiles, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    """From its start to its outcome in the journal."""
    led: list[str] = []

    def ended(code: ExitCode, *job: str) -> int:
        def lead(supervisor: Supervisor) -> Outcome:
            led.append(job[-1])
            return Outcome("ended", code, f"{job[-1]} ended with {code}")

        monkeypatch.setattr(Supervisor, "supervise", lead)
        return serve(run, free_port, *job)

    longer, shorter = ("train", "200"), ("train", "100")
    assert ended(ExitCode.STOPPED, *longer) == ExitCode.STOPPED
    begun = json.loads(run.run.read_text())
    assert ended(ExitCode.FINISHED, *shorter) == ExitCode.FINISHED
    assert ended(ExitCode.FINISHED, *shorter) == ExitCode.FINISHED
    assert led == ["200", "100"]
    assert ended(ExitCode.FINISHED, *longer) == ExitCode.FINISHED
    assert led == ["200", "100", "200"]
    assert json.loads(run.run.read_text()) == begun


def test_a_head_names_the_report_only_if_the_report_knows_the_outcome(run: RunFiles) -> None:
    journal = Journal(run.journal, "head")
    journal.record("start", "this is the head")
    said = head.what_to_do(run, ExitCode.RUN_DIR)
    assert said.startswith("what to do: Look at the run directory's storage")
    journal.record("outcome", "the run directory takes no write", outcome="failed", exit_code=73)
    named = f"the cause, and what to do: rollcall report {run.root}"
    assert head.what_to_do(run, ExitCode.RUN_DIR) == named
    shutil.rmtree(run.root)
    assert head.what_to_do(run, ExitCode.RUN_DIR) == said
