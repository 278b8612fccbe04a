"""The head's HTTP while its storage answers nobody (files that nobody writes to, read), or takes
nothing."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from contract.journal import append_event
from contract.lease import SupersededError
from contract.progress import Progress
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.net.wait import NotYetError
from entrypoint.run import run_dir_reads
from tests.support.control import TOKEN, Head, node_info
from tests.support.waiting import eventually


@contextmanager
def stalled(path: Path) -> Iterator[None]:
    """Whoever opens it waits, as for a server that is away, until the end of the block."""
    os.mkfifo(path)
    try:
        yield
    finally:
        while reading():
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # between two of them
                time.sleep(0.01)
        path.unlink()


def reading() -> int:
    return sum(thread.name == "run-read" for thread in threading.enumerate())


def ask(head: Head, path: str, times: int = 1) -> list[httpx.Response]:
    """Asked from threads; the answers come into the list."""
    answers: list[httpx.Response] = []

    def one() -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"http://127.0.0.1:{head.port}{path}"
        answers.append(httpx.get(url, headers=headers, timeout=60))

    for _ in range(times):
        threading.Thread(target=one, daemon=True).start()
    return answers


@pytest.mark.parametrize("path", ["/metrics", "/v1/state"])
def test_a_worker_is_answered_while_what_reads_the_run_directory_waits(
    head: Head, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.cluster.roll.QUESTION_SECONDS", 0.3)
    monkeypatch.setattr(run_dir_reads, "PATIENCE_SECONDS", 60.0)
    head.client().check_in(node_info("a"), joined=True)
    with stalled(head.run.progress):
        answers = ask(head, path)
        eventually(lambda: reading() == 1)
        for _ in range(3):
            assert head.get("/v1/outcome?node=a").json()["outcome"] == "running"
            assert head.get("/healthz").is_success
        head.client().check_in(node_info("b", "127.0.0.4"), joined=True)
        assert answers == []
    eventually(lambda: bool(answers))
    assert answers[0].is_success


def test_a_worker_is_answered_while_a_page_waits_for_the_journal(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.cluster.roll.QUESTION_SECONDS", 0.3)
    head.client().check_in(node_info("a"), joined=True)
    url = f"http://127.0.0.1:{head.port}/v1/events?token={TOKEN}"
    with httpx.stream("GET", url, timeout=20) as stream:
        with stalled(head.run.journal):
            eventually(lambda: reading() == 1)
            assert head.get("/v1/outcome?node=a").json()["outcome"] == "running"
        append_event(head.run.journal, "start", "it answers again")
        line = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert "it answers again" in line


def test_reads_that_stall_do_not_pile_up_and_are_given_up_in_time(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir_reads, "PATIENCE_SECONDS", 0.5)
    with stalled(head.run.progress):
        for turn in range(3):
            answers = ask(head, "/v1/state", times=run_dir_reads.MOST_AT_ONCE)
            eventually(lambda: len(answers) == run_dir_reads.MOST_AT_ONCE)  # noqa: B023
            assert reading() == run_dir_reads.MOST_AT_ONCE, turn
        assert {answer.status_code for answer in answers} == {503}
        assert answers[0].json()["error"] == "storage has not answered for 0.5 s"
    Progress(step=3).write(head.run.progress)
    assert head.get("/v1/state").json()["progress"]["step"] == 3


def test_a_file_that_cannot_be_read_is_named(head: Head) -> None:
    head.run.progress.mkdir()
    answer = head.get("/v1/state")
    assert answer.status_code == 503
    assert answer.json()["error"] == f"{head.run.progress}: Is a directory"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/run/journal.jsonl"),
            "/run/journal.jso",
        ),
        (SupersededError("lease 1 was taken over by a later head (lease 2)"), "lease 1 was taken"),
    ],
)
def test_a_check_in_that_the_journal_does_not_take_is_asked_again_and_no_traceback_is_shown(
    head: Head, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(info: NodeInfo) -> NoReturn:
        raise error

    monkeypatch.setattr(head.heard, "checked_in", full)
    with pytest.raises(NotYetError, match=f"/v1/check-in answers 503: {said}"):
        head.client().check_in(node_info("a"))
    assert head.client().check_in(node_info("a")).incarnation == "first"
    assert caplog.messages == []
