"""A worker whose token the head refuses, as after a start of the head without `RUN/.token`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.node import ray_node
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.run import token as run_token
from tests.support.control import TOKEN
from tests.support.waiting import eventually
from tests.support.worker_and_head import head_of, serve


@pytest.fixture
def settings(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a worker that has no token but the run directory's."""
    monkeypatch.setattr(wait, "backoff", lambda failures, **_: 0.01)
    del environ["ROLLCALL_TOKEN"]
    return read_settings(environ, ["true"])


@pytest.fixture
def token(settings: Settings) -> Path:
    """Of a head that lives no more; no Ray is started here, as its log has no place."""
    run = RunFiles(settings.run_dir)
    run.logs.write_text("in the way of the directory")
    run.token.write_text("of-the-head-before")
    return run.token


def test_a_worker_reads_the_token_again_when_the_head_refuses_it(
    settings: Settings, token: Path
) -> None:
    inbox, codes = Inbox(), list[int]()
    with head_of(settings) as head:
        worker = threading.Thread(target=lambda: codes.append(serve(settings, inbox)))
        worker.start()
        eventually(ray_node.fd_store_path(settings).exists)  # it has read the token by then
        token.unlink()
        token.write_text(TOKEN)
        eventually(lambda: bool(head.state()["nodes"]))
        inbox.put(StopAsked("SIGTERM"))
        worker.join(10)
    assert codes == [ExitCode.STOPPED]


def test_a_worker_whose_run_directory_has_no_other_token_ends_with_77(
    settings: Settings,
    token: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(run_token, "STORAGE_GRACE_SECONDS", 0.5)
    with head_of(settings):
        assert serve(settings) == ExitCode.NOT_ALLOWED
    assert "does not know this node's token" in caplog.messages[-1]
