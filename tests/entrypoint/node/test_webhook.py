"""The webhook, against a real HTTP server: what it is told, and that it holds up nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.files.append import append_line
from contract.journal_file.lines import line_of
from contract.lease import Claim
from contract.options import ConfigError
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node import webhook
from entrypoint.node.webhook import Follower, News, telling
from entrypoint.run.journal import Journal
from entrypoint.run.lease import Lease
from tests.support.hook_server import PATH, hook_server
from tests.support.waiting import eventually


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "LOOK_SECONDS", 0.05)


@pytest.fixture
def claim(tmp_path: Path) -> Iterator[Claim]:
    with Lease(RunFiles(tmp_path).leases, lambda why: None, "127.0.0.1") as lease:
        yield lease.claim


@pytest.fixture
def journal(tmp_path: Path, claim: Claim) -> Journal:
    return Journal(RunFiles(tmp_path).journal, "head", claim)


def settings_of(url: str, run_dir: Path) -> Settings:
    return read_settings({"ROLLCALL_WEBHOOK": url, "ROLLCALL_RUN_DIR": str(run_dir)})


def test_start_failure_recovery_and_end_are_told_once_and_in_order(
    quick: None, tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    journal.record("outcome", "of an earlier head", outcome="failed", exit_code=70)
    with (
        hook_server() as hook,
        telling(settings_of(hook.url, tmp_path), RunFiles(tmp_path), claim),
    ):
        journal.record("start", "this is the head")
        journal.attempt = 1
        journal.record("step", "step 1", step=1)
        journal.record("engine-replaced", "engine 2 is replaced")
        journal.record("failure", "hang: no step for 600 s", failure="hang")
        journal.record("step", "step 2", step=2)
        journal.record("step", "step 3", step=3)
        journal.record("outcome", "the job has finished", outcome="finished", exit_code=0)
        eventually(lambda: "end" in hook.events)
    start, repaired, failure, recovery, end = hook.taken
    name = tmp_path.name
    assert (start["event"], start["text"]) == ("start", f"{name}: this is the head")
    assert (repaired["event"], repaired["kind"]) == ("recovery", "engine-replaced")
    assert failure["text"] == f"{name}: hang: no step for 600 s"
    assert failure["attempt"] == 1
    assert failure["details"] == {"failure": "hang"}
    assert recovery["text"].startswith(f"{name}: the run goes on: step 2, ")
    assert end["text"] == f"{name}: finished: the job has finished"
    assert end["details"]["exit_code"] == 0


def test_warnings_of_one_moment_that_differ_only_in_words_are_told_once() -> None:
    news, at = News("run"), "2026-11-25T02:30:00.123+00:00"
    event = {"at": at, "node": "head", "attempt": 1, "kind": "service", "details": {}}
    sentences = [f"the reward server ended; starting it again in {pause} s" for pause in (0.5, 1.1)]
    told = [news.of(event | {"sentence": sentence}) for sentence in sentences]
    assert [message is not None for message in told] == [True, False]


def test_a_loss_that_ends_no_attempt_is_a_warning_and_told_once_for_a_while(
    tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    follower = Follower(RunFiles(tmp_path), claim.epoch)
    journal.record("refused", "refused w3 at 10.0.0.3: GPU 0 is lost", node="w3")
    journal.record("refused", "refused w4 at 10.0.0.4: GPU 0 is lost", node="w4")
    for pause in (0.5, 1.1, 30):
        sentence = f"the reward server ended; starting it again in {pause} s"
        journal.record("service", sentence, service="reward")
    journal.record("service", "the retriever server ended with 1", service="retriever")
    journal.record("reward-server", "Waiting for a reward, 1 s so far", waits=True)
    journal.record("reward-server", "Waiting for a reward, 31 s so far", waits=True)
    journal.record("reward-server", "Rewards come again, after 40 s.", waits=False)
    journal.record("push-failed", "The model is not on the hub: no network")
    journal.record("node-lost", "w1 is silent: look at its machine and its network", node="w1")
    journal.record("node-back", "w1 is heard again", node="w1")
    told = [(one["event"], one["kind"], one["text"]) for one in follower.new()]
    name = tmp_path.name
    assert told == [
        ("warning", "refused", f"{name}: refused w3 at 10.0.0.3: GPU 0 is lost"),
        ("warning", "refused", f"{name}: refused w4 at 10.0.0.4: GPU 0 is lost"),
        ("warning", "service", f"{name}: the reward server ended; starting it again in 0.5 s"),
        ("warning", "service", f"{name}: the retriever server ended with 1"),
        ("warning", "reward-server", f"{name}: Waiting for a reward, 1 s so far"),
        ("recovery", "reward-server", f"{name}: Rewards come again, after 40 s."),
        ("warning", "push-failed", f"{name}: The model is not on the hub: no network"),
        ("warning", "node-lost", f"{name}: w1 is silent: look at its machine and its network"),
        ("recovery", "node-back", f"{name}: w1 is heard again"),
    ]


def test_a_warning_that_goes_on_is_told_again_after_a_while() -> None:
    news = News("run")
    event = {"node": "head", "attempt": 1, "kind": "refused", "sentence": "no", "details": {}}
    times = [f"2026-01-31T18:{minute:02}:00.000+00:00" for minute in (0, 9, 10, 11)]
    assert [news.of({**event, "at": at}) is not None for at in times] == [True, False, True, False]


def test_a_server_that_answers_500_is_asked_again(
    quick: None, tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    with (
        hook_server([500, 503, 429]) as hook,
        telling(settings_of(hook.url, tmp_path), RunFiles(tmp_path), claim),
    ):
        journal.record("start", "this is the head")
        eventually(lambda: hook.events == ["start"])
    assert hook.asked == 4


def test_a_message_that_the_server_declines_is_dropped_and_the_next_one_told(
    quick: None,
    tmp_path: Path,
    claim: Claim,
    journal: Journal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        hook_server([404]) as hook,
        telling(settings_of(hook.url, tmp_path), RunFiles(tmp_path), claim),
    ):
        journal.record("start", "this is the head")
        journal.record("outcome", "stopped", outcome="stopped", exit_code=143)
        eventually(lambda: hook.events == ["end"])
    assert hook.asked == 2
    assert "the webhook did not take the start message: it answers 404" in caplog.text
    assert PATH not in caplog.text


def test_a_slow_server_delays_neither_an_event_nor_the_end_for_long(
    quick: None, tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    with hook_server(delay=60) as hook:
        with telling(settings_of(hook.url, tmp_path), RunFiles(tmp_path), claim):
            began = time.monotonic()
            for step in range(100):
                journal.record("failure", "hang", failure="hang")
                journal.record("step", "a step", step=step)
            assert time.monotonic() - began < 5
            began = time.monotonic()
        assert time.monotonic() - began < webhook.LAST_SECONDS + 1


def test_a_server_that_is_down_ends_nothing_and_its_url_is_in_no_output(
    quick: None,
    tmp_path: Path,
    claim: Claim,
    journal: Journal,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(webhook, "DEADLINE_SECONDS", 0.5)
    url = f"http://127.0.0.1:{closed_port}{PATH}"
    with telling(settings_of(url, tmp_path), RunFiles(tmp_path), claim):
        journal.record("start", "this is the head")
        eventually(lambda: "the webhook did not take the start message" in caplog.text)
        began = time.monotonic()
    assert time.monotonic() - began < webhook.LAST_SECONDS + 1
    assert "ConnectError" in caplog.text
    assert PATH not in "".join(r.getMessage() for r in caplog.records if r.name != "httpcore")


KILLED = "the program was ended by signal 9 (SIGKILL, Killed)"


def test_a_number_that_json_does_not_have_costs_no_message(
    quick: None, tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    """The reward of a step may be NaN: Python writes it, and JSON has no such number."""
    with (
        hook_server() as hook,
        telling(settings_of(hook.url, tmp_path), RunFiles(tmp_path), claim),
    ):
        journal.record("failure", f"unknown: {KILLED}", failure="unknown", evidence=KILLED)
        journal.record("step", "step 2", step=2, reward=float("nan"), kl=float("inf"))
        journal.record("outcome", "the job has finished", outcome="finished", exit_code=0)
        eventually(lambda: hook.events == ["failure", "recovery", "end"])
    assert hook.taken[1]["details"] == {"step": 2, "reward": None, "kl": None}
    assert hook.taken[0]["text"].endswith(f": {KILLED}")
    assert "unknown" not in hook.taken[0]["text"]


def test_a_proxy_that_cannot_be_used_costs_the_messages_and_not_the_run(
    tmp_path: Path, claim: Claim, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://someone:secret-word@127.0.0.1:1080")
    with telling(settings_of(f"https://hooks.example{PATH}", tmp_path), RunFiles(tmp_path), claim):
        pass
    assert "the webhook is told nothing of this run: Using SOCKS proxy" in caplog.text
    assert "secret-word" not in caplog.text


def test_a_submitted_job_is_told_of_from_its_start_to_its_end(
    quick: None, tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    run = RunFiles(tmp_path)
    files = RunFiles(run.jobs / "job-1")
    files.root.mkdir(parents=True)
    of_job = Journal(files.journal, "head", claim)
    of_job.record("failure", "hang: of an earlier head", failure="hang")
    time.sleep(0.01)
    with hook_server() as hook, telling(settings_of(hook.url, tmp_path), run, claim):
        journal.record("job-started", "job-1 begins", job="job-1")
        of_job.record("start", "job-1 begins on the cluster of head")
        eventually(lambda: hook.events == ["start"])
        of_job.record("outcome", "the job has finished", outcome="finished", exit_code=0)
        journal.record("job-ended", "job-1 has finished", job="job-1")
        eventually(lambda: hook.events == ["start", "end"])
    assert hook.taken[1]["run"] == f"{tmp_path.name}/job-1"


def test_a_job_that_ends_before_it_begins_has_an_end_too(
    tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    """A stage of a pipeline finds only at its turn that a file is missing."""
    follower = Follower(RunFiles(tmp_path), claim.epoch)
    said = "job-2 (rl) has failed: it did not begin: --pretrain run/hf is not a directory"
    journal.record("job-ended", said, job="job-2", outcome="failed", exit_code=64)
    journal.record("job-ended", "job-3 has been stopped", job="job-3", outcome="stopped")
    told, stopped = follower.new()
    name = f"{tmp_path.name}/job-2"
    assert (told["event"], told["run"], told["text"]) == ("end", name, f"{name}: {said}")
    assert stopped["text"] == f"{tmp_path.name}/job-3: job-3 has been stopped"


def test_the_events_of_a_later_head_are_that_head_s_to_tell(
    tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    follower = Follower(RunFiles(tmp_path), claim.epoch)
    journal.record("start", "mine")
    (own,) = journal.events()
    append_line(journal.path, line_of({**own, "epoch": claim.epoch + 1}), durable=False)
    assert [message["text"] for message in follower.new()] == [f"{tmp_path.name}: mine"]
    assert list(follower.new()) == []


def test_storage_that_fails_for_one_journal_costs_no_message_of_another(
    quick: None, tmp_path: Path, claim: Claim, journal: Journal
) -> None:
    run = RunFiles(tmp_path)
    of_job = RunFiles(run.jobs / "job-1").journal
    of_job.mkdir(parents=True)  # it cannot be read
    with hook_server() as hook, telling(settings_of(hook.url, tmp_path), run, claim):
        journal.record("job-started", "job-1 begins", job="job-1")
        time.sleep(0.2)  # it is followed from now on
        journal.record("refused", "refused w3 at 10.0.0.3: GPU 0 is lost", node="w3")
        eventually(lambda: hook.events == ["warning"])
        of_job.rmdir()
        Journal(of_job, "head", claim).record("start", "job-1 begins on the cluster of head")
        eventually(lambda: hook.events == ["warning", "start"])


def test_a_wrong_url_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_of(f"ftp://hooks.example{PATH}", tmp_path)
    assert "ROLLCALL_WEBHOOK='********' is not an http or https URL" in str(refused.value)
    assert PATH not in str(refused.value)
    settings = settings_of(f"https://hooks.example{PATH}", tmp_path)
    assert PATH not in repr(settings)
    assert f"https://hooks.example{PATH}" in settings.secrets
