"""Servers that a node starts, waits for and starts again, with real ones."""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.files.child_variables import NODE_MARK
from contract.lease import SupersededError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net.http import status_of
from entrypoint.net.wait import GaveUpError
from entrypoint.processes import process
from entrypoint.processes.services import Service, Services, ServiceSpec, mark, specs
from tests.support.http_answers import SERVER
from tests.support.waiting import eventually


def service(tmp_path: Path, port: int, tell: Callable[[str], None], delay: float = 0) -> Service:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    command = (sys.executable, str(script), str(port), str(delay))
    spec = ServiceSpec("reward", f"http://127.0.0.1:{port}/get_reward", command)
    return Service(spec, env=dict(os.environ), log_to=tmp_path / "reward.log", tell=tell)


def test_a_server_that_comes_up_late_is_waited_for(tmp_path: Path, free_port: int) -> None:
    late = service(tmp_path, free_port, print, delay=1.0)
    late.start()
    try:
        late.wait_ready(30, threading.Event())
        assert status_of(f"http://127.0.0.1:{free_port}/") == 501
    finally:
        late.stop()


def test_a_server_that_dies_is_started_again_and_the_journal_is_told(
    tmp_path: Path, free_port: int
) -> None:
    told: list[str] = []
    running = service(tmp_path, free_port, told.append)
    running.start()
    try:
        running.wait_ready(30, threading.Event())
        assert running._process is not None
        first = running._process.pid
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while running._process.pid == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.wait_ready(30, threading.Event())
        assert "ended with 137" in told[0]
    finally:
        running.stop()


class Full:
    """A journal on a disk that is full, or another fault of it."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[str] = []

    def tell(self, sentence: str) -> None:
        self.asked.append(sentence)
        raise self.error


def failing(log_to: Path, tell: Callable[[str], None]) -> Service:
    spec = ServiceSpec("reward", None, ("false",))
    return Service(spec, env=dict(os.environ), log_to=log_to, tell=tell)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoint.net.wait.backoff", lambda failures: 0.01)


@pytest.mark.usefixtures("short_pauses")
def test_a_server_is_started_again_also_where_the_journal_takes_no_word_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = Full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    ends = failing(tmp_path / "reward.log", full.tell)
    ends.start()
    eventually(lambda: len(full.asked) >= 3)
    ends.stop()
    assert caplog.messages[0] == f"{full.asked[0]} (not in the journal: No space left on device)"


@pytest.mark.usefixtures("short_pauses")
def test_a_server_is_started_once_there_is_a_place_for_its_log(tmp_path: Path) -> None:
    told: list[str] = []
    logs = tmp_path / "logs"
    logs.write_text("in the way of the directory")
    ends = failing(logs / "reward.log", told.append)
    ends.start()
    eventually(lambda: len(told) >= 2)
    assert f"the reward server cannot start: {logs}: File exists; starting it again" in told[0]
    logs.unlink()
    eventually(lambda: "the reward server ended with 1; " in told[-1])
    ends.stop()


@pytest.mark.usefixtures("short_pauses")
def test_a_server_of_a_head_that_was_superseded_is_left(tmp_path: Path) -> None:
    superseded = Full(SupersededError("a later head has the run"))
    ends = failing(tmp_path / "reward.log", superseded.tell)
    ends.start()
    ends._keeper.join(10)
    assert len(superseded.asked) == 1


def test_a_server_that_never_answers_ends_the_wait_with_its_url(
    tmp_path: Path, closed_port: int
) -> None:
    spec = ServiceSpec("reward", f"http://127.0.0.1:{closed_port}/get_reward", None)
    only_waited_for = Service(spec, env={}, log_to=tmp_path / "log", tell=print)
    only_waited_for.start()
    said = rf"{closed_port}.*; ROLLCALL_REWARD_TIMEOUT sets this limit"
    with pytest.raises(GaveUpError, match=said):
        only_waited_for.wait_ready(0.5, threading.Event())


def settings(**environ: str) -> Settings:
    return read_settings(environ)


def test_the_head_starts_the_reward_server_and_workers_do_not() -> None:
    given = settings(
        ROLLCALL_REWARD_URL="http://head:5000/get_reward", ROLLCALL_REWARD_COMMAND="serve it"
    )
    (on_head,) = specs(given, is_head=True)
    assert on_head.command == ("serve", "it")
    assert specs(given, is_head=False) == []


def test_a_url_alone_is_only_waited_for_and_only_by_the_head() -> None:
    given = settings(ROLLCALL_REWARD_URL="http://elsewhere:5000/get_reward")
    (on_head,) = specs(given, is_head=True)
    assert on_head.command is None
    assert specs(given, is_head=False) == []


def test_every_node_starts_the_retriever() -> None:
    given = settings(
        ROLLCALL_RETRIEVER_URL="http://127.0.0.1:8000/retrieve", ROLLCALL_RETRIEVER_COMMAND="bash x"
    )
    assert [one.name for one in specs(given, is_head=False)] == ["retriever"]


def test_a_server_left_by_a_killed_node_is_ended_before_its_successor_starts(
    tmp_path: Path, free_port: int
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    given = settings(
        ROLLCALL_RUN_DIR=str(tmp_path),
        ROLLCALL_REWARD_URL=f"http://127.0.0.1:{free_port}/get_reward",
        ROLLCALL_REWARD_COMMAND=f"{sys.executable} {script} {free_port} 0",
        ROLLCALL_NODE_NAME=f"head-{os.getpid()}",
    )
    left = process.Process(
        "reward",
        given.reward_command or (),
        env=dict(os.environ) | {NODE_MARK: mark(given)},
        log_to=tmp_path / "left.log",
    )
    eventually(
        lambda: bool(process.find_marked(mark(given)))
    )  # it may show no environment at first
    told: list[str] = []
    with Services(
        given, is_head=True, env=dict(os.environ), tell=lambda said, **_: told.append(said)
    ) as services:
        assert not left.running
        services.wait_ready(threading.Event())
    assert told == []
    assert process.find_marked(mark(given)) == []
