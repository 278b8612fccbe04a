"""A run directory that is lost while the run lives: how each node ends, and what it was told."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from contract import lease as contract_lease
from contract.exit_codes import ExitCode
from contract.lease import SupersededError
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.recipes.command.recipe import RECIPE
from entrypoint.job.run_context import RunContext
from entrypoint.job.supervisor import conclude
from entrypoint.net import wait
from entrypoint.node.membership import TRIES, Membership
from entrypoint.processes.inbox import HeadSaid, Inbox, Message
from entrypoint.run import run_dir_reads
from entrypoint.run.journal import Journal
from entrypoint.run.lease import Lease
from tests.support.control import Head, node_info
from tests.support.waiting import eventually
from tests.support.worker_and_head import head_of, serve
from tests.support.world import FINISHED, World


@pytest.fixture
def journal(head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """Of a head that holds the run."""
    monkeypatch.setattr(contract_lease, "RESTORE_SECONDS", 0.2)
    head.run.run.write_text(json.dumps({"fingerprint": "0"}))
    with Lease(head.run.leases) as lease:
        yield Journal(head.run.journal, "head", lease.claim)


@pytest.fixture
def told(head: Head) -> list[Message]:
    """What a worker of this head hears."""
    said: list[Message] = []
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    client.watch("a", "first", said.append)
    eventually(lambda: head.control._registry._entries["a"].asking == 1)
    return said


def lose_the_mount(run: RunFiles) -> None:
    """An empty directory lies in its place."""
    run.root.rename(run.root.with_name(f"{run.root.name}-away"))
    run.root.mkdir()


def context(head: Head, journal: Journal) -> RunContext:
    settings = read_settings({"ROLLCALL_RUN_DIR": str(head.run.root)})
    return RunContext(settings, RECIPE, journal, head.control, Inbox())


FAILURES = [
    Outcome("failed", ExitCode.RUN_DIR, "the run directory took no write"),
    Outcome("failed", ExitCode.JOB_FAILED, "the job failed 4 times"),
    Outcome("stopped", ExitCode.STOPPED, "SIGTERM"),
]


@pytest.mark.parametrize("outcome", FAILURES, ids=lambda outcome: outcome.exit_code.name)
def test_workers_are_told_an_outcome_that_cannot_be_written_down(
    head: Head,
    journal: Journal,
    told: list[Message],
    outcome: Outcome,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lose_the_mount(head.run)
    assert conclude(outcome, context(head, journal), 1.0) == outcome.exit_code
    eventually(lambda: told == [HeadSaid(outcome.name, outcome.exit_code)])
    (sentence,) = [
        record.message for record in caplog.records if record.name == "entrypoint.job.supervisor"
    ]
    assert sentence.startswith(f"{outcome.sentence}; the outcome cannot be written down (")
    assert sentence.endswith("Stale file handle)")


def test_a_run_whose_end_is_on_no_record_is_finished_on_no_node(
    head: Head, journal: Journal, told: list[Message]
) -> None:
    lose_the_mount(head.run)
    outcome = Outcome("finished", ExitCode.FINISHED, "the job has finished")
    assert conclude(outcome, context(head, journal), 1.0) == ExitCode.RUN_DIR
    eventually(lambda: told == [HeadSaid("failed", ExitCode.RUN_DIR)])


def test_workers_of_a_head_that_was_superseded_are_told_nothing(
    head: Head, journal: Journal, told: list[Message]
) -> None:
    (head.run.leases / "2").write_text("{}")
    outcome = Outcome("stopped", ExitCode.STOPPED, "taken over")
    with pytest.raises(SupersededError):
        conclude(outcome, context(head, journal), 1.0)
    assert told == []
    assert head.control.state()["outcome"] is None


def test_a_journal_that_takes_no_event_ends_the_run_with_an_outcome(tmp_path: Path) -> None:
    world = World(tmp_path, lambda world: FINISHED)
    world.run.journal.mkdir()
    remedy = "a directory is in the file's place: move it away"
    outcome = world.lives()
    assert outcome == Outcome(
        "failed", ExitCode.RUN_DIR, f"{world.run.journal}: Is a directory: {remedy}"
    )


@pytest.fixture
def settings(environ: dict[str, str]) -> Settings:
    return read_settings(environ, ["true"])


def test_a_worker_whose_ray_finds_no_place_for_its_log_tries_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait, "backoff", lambda failures, **_: 0.01)
    run = RunFiles(settings.run_dir)
    run.logs.write_text("in the way of the directory")
    with head_of(settings):
        assert serve(settings) == ExitCode.RETRY
    assert caplog.messages.count(f"Ray does not start: {run.logs}: File exists") == TRIES


def test_a_worker_whose_run_directory_is_a_copy_is_refused(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A whole worker and a real control port; the copy is made while the head lives."""
    monkeypatch.setattr(run_dir_reads, "STORAGE_GRACE_SECONDS", 0.0)
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    head = head_of(settings)
    with Lease(RunFiles(tmp_path).leases) as lease, head:
        head._registry.me = replace(head._registry.me, storage=lease.incarnation)
        shutil.copytree(tmp_path, copy)
        elsewhere = replace(settings, run_dir=copy)
        with caplog.at_level(logging.ERROR):
            assert serve(elsewhere) == ExitCode.UNFIT
    assert "mount one shared storage at ROLLCALL_RUN_DIR" in caplog.messages[-1]
    assert [path.name for path in copy.iterdir()] == [".leases"]


def test_a_worker_that_storage_ends_says_one_sentence(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = str(RunFiles(settings.run_dir).logs)

    def stale(self: object) -> Message:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), logs)

    monkeypatch.setattr(Membership, "_join_once", stale)
    with caplog.at_level(logging.ERROR):
        assert serve(settings) == ExitCode.RUN_DIR
    assert caplog.messages == [f"{logs}: Stale file handle: mount it again"]


ELSEWHERE = [
    (OSError(errno.ECONNREFUSED, "Connection refused"), "Connection refused", ExitCode.RETRY),
    (OSError(errno.EMFILE, "Too many open files", "{}"), "/logs: Too many open", ExitCode.RETRY),
    (OSError(errno.EACCES, "Permission denied", "/tmp/x"), "/tmp/x: Permission", ExitCode.UNFIT),
    (OSError(errno.ENOENT, "No such file", "/tmp/x"), "correct the path", ExitCode.UNFIT),
]
"""An error, what is said of it, and the exit code: another try helps, or the node is not fit."""


@pytest.mark.parametrize(("error", "said", "code"), ELSEWHERE)
def test_what_is_not_of_the_run_directory_is_worth_another_try_on_a_worker_if_that_may_help(
    settings: Settings,
    error: OSError,
    said: str,
    code: ExitCode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Membership, "_join_once", raising(error, settings.run_dir))
    with caplog.at_level(logging.ERROR):
        assert serve(settings) == code
    assert said in caplog.messages[0]


@pytest.mark.parametrize(("error", "said", "code"), ELSEWHERE)
def test_what_is_not_of_the_run_directory_is_worth_another_try_on_a_head_if_that_may_help(
    tmp_path: Path, error: OSError, said: str, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, lambda world: FINISHED)
    monkeypatch.setattr(world, "alive", raising(error, tmp_path))
    outcome = world.lives()
    assert outcome.exit_code is code
    assert said in outcome.sentence


def raising(error: OSError, root: Path) -> Callable[..., NoReturn]:
    def fails(*_: object) -> NoReturn:
        name = error.filename and error.filename.replace("{}", str(RunFiles(root).logs))
        raise OSError(error.errno, error.strerror, name)

    return fails


@pytest.mark.parametrize("broken", ["write", "fsync"])
def test_a_full_disk_is_named_by_the_file_that_it_does_not_take(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    world = World(tmp_path, lambda world: FINISHED)
    monkeypatch.setattr(f"contract.run_dir.os.{broken}", full)
    outcome = world.lives()
    why = f"{world.run.journal}: No space left on device: free space there"
    assert outcome == Outcome("failed", ExitCode.RUN_DIR, why)
