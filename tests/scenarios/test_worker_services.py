"""A worker that starts a service itself joins once that answers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.cluster.server import ControlServer
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net.http import status_of
from entrypoint.node.member import Member
from entrypoint.processes.inbox import HeadSaid, Inbox, StopAsked
from tests.support.http_answers import SERVER
from tests.support.waiting import eventually
from tests.support.worker_and_head import head_of, serve

pytestmark = pytest.mark.timeout(60)


def with_retriever(
    environ: dict[str, str], port: int, command: str, timeout: str = "10m"
) -> Settings:
    retriever = {
        "ROLLCALL_RETRIEVER_URL": f"http://127.0.0.1:{port}/retrieve",
        "ROLLCALL_RETRIEVER_COMMAND": command.format(port=port),
        "ROLLCALL_REWARD_TIMEOUT": timeout,
    }
    return read_settings(environ | retriever, ["true"])


@pytest.fixture
def silent(environ: dict[str, str], closed_port: int) -> Settings:
    """Of a worker whose retriever never answers."""
    return with_retriever(environ, closed_port, "sleep 600")


@pytest.fixture
def control(silent: Settings) -> Iterator[ControlServer]:
    with head_of(silent) as control:
        yield control


def test_its_ray_starts_once_its_service_answers(
    environ: dict[str, str], port_block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = f"{sys.executable} {tmp_path}/server.py {{port}} 1.5"
    settings = with_retriever(environ, port_block, command)
    assert settings.retriever_url is not None
    url, statuses = settings.retriever_url, []

    def belong(*_: object) -> HeadSaid:
        statuses.append(status_of(url))
        return HeadSaid("finished", 0)

    monkeypatch.setattr(Member, "belong", belong)
    with head_of(settings):
        assert serve(settings) == ExitCode.FINISHED
    assert statuses == [501]


def asked(control: ControlServer) -> bool:
    """Whether a worker has checked in, and waits for an outcome."""
    return any(entry.asking for entry in control._registry._entries.values())


def meanwhile(control: ControlServer, act: Callable[[], None]) -> None:
    """Once the worker waits for its service."""

    def run() -> None:
        eventually(lambda: asked(control))
        act()

    threading.Thread(target=run, daemon=True).start()


def test_an_outcome_ends_the_wait(silent: Settings, control: ControlServer) -> None:
    meanwhile(control, lambda: control.announce("failed", 70))
    assert serve(silent) == ExitCode.JOB_FAILED


def test_a_stop_ends_the_wait(silent: Settings, control: ControlServer) -> None:
    inbox = Inbox()
    meanwhile(control, lambda: inbox.put(StopAsked("SIGTERM")))
    assert serve(silent, inbox) == ExitCode.STOPPED


def test_a_head_that_is_lost_ends_the_wait_and_is_joined_again(
    silent: Settings, control: ControlServer, caplog: pytest.LogCaptureFixture
) -> None:
    def new_incarnation() -> None:
        control.new_incarnation()
        eventually(lambda: asked(control))
        control.announce("finished", 0)

    meanwhile(control, new_incarnation)
    assert serve(silent) == ExitCode.FINISHED
    assert "the head is lost (the head was started again); waiting for it" in caplog.messages


def test_a_service_that_does_not_answer_in_time_ends_the_worker_with_69(
    environ: dict[str, str], closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = with_retriever(environ, closed_port, "sleep 600", timeout="1s")
    with head_of(settings):
        assert serve(settings) == ExitCode.UNREACHABLE
    assert f"the retriever server: not there after 1 s ({settings.retriever_url}" in caplog.text
