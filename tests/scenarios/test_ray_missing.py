"""A Ray that cannot be started, on any node and at any time: one line each, and an exit code."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.node import head, ray_command_line, ray_node
from entrypoint.node.membership import TRIES
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes.inbox import Inbox, RayFailedError
from tests.support.control import TOKEN
from tests.support.worker_and_head import head_of, serve


@pytest.fixture
def of_worker(environ: dict[str, str]) -> Settings:
    return read_settings(environ, ["true"])


SAID = "ray cannot start: /no/such/ray: No such file or directory"


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: ("/no/such/ray",))


@pytest.fixture
def of_head(tmp_path: Path, free_port: int) -> Iterator[Settings]:
    with TemporaryDirectory() as short:
        yield read_settings(
            {
                "EXPECTED_WORKERS": "0",
                "ROLLCALL_CONTROL_PORT": str(free_port),
                "ROLLCALL_RAY_TEMP_DIR": short,
                "ROLLCALL_RUN_DIR": str(tmp_path),
                "ROLLCALL_RECIPE": "command",
                "ROLLCALL_NODE_NAME": f"head-{os.getpid()}",
            },
            ["true"],
        )


def test_a_head_says_so_writes_it_down_and_ends(
    of_head: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    role = Head(0, 0, "a test")
    with caplog.at_level(logging.INFO):
        assert head.serve(of_head, role, {}, Inbox()) == ExitCode.UNFIT
    assert SAID in caplog.messages
    result = json.loads(RunFiles(of_head.run_dir).result.read_text())
    assert (result["outcome"], result["exit_code"]) == ("failed", ExitCode.UNFIT)


def test_a_head_whose_ray_is_to_be_started_anew_ends_as_where_it_dies(of_head: Settings) -> None:
    me = NodeInfo(node="head", address="127.0.0.1", versions={}, inventory={"gpus": 0})
    with (
        HeadRay(of_head, me, TOKEN, Inbox()) as cluster,
        pytest.raises(RayFailedError, match=SAID),
    ):
        cluster.revive()


def test_a_worker_without_the_program_is_not_fit(
    of_worker: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with head_of(of_worker):
        assert serve(of_worker) == ExitCode.UNFIT
    assert caplog.messages.count(SAID) == 1


@pytest.mark.parametrize("steady", [wait.STEADY_SECONDS, 0.0])
def test_a_worker_tries_again_and_gives_up_in_the_end_however_slow_the_failures_are(
    of_worker: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    steady: float,
) -> None:
    """Otherwise a node whose starts take longer than a steady run would try for ever."""
    monkeypatch.setattr(wait, "backoff", lambda failures, **_: 0.01)
    monkeypatch.setattr(wait, "STEADY_SECONDS", steady)
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: ("/bin/false",))
    with head_of(of_worker):
        assert serve(of_worker) == ExitCode.RETRY
    assert len([line for line in caplog.messages if "did not start" in line]) == TRIES


def test_a_file_of_rays_that_is_another_users_is_no_fault_of_the_run_directory(
    of_head: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def others(settings: Settings) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "/tmp/ray/ray_current_cluster")

    monkeypatch.setattr(ray_node, "forget_cluster", others)
    assert head.serve(of_head, Head(0, 0, "a test"), {}, Inbox()) == ExitCode.UNFIT
    said = "/tmp/ray/ray_current_cluster: Permission denied: give user"
    assert caplog.messages[-1].startswith(said)


def test_storage_that_knows_no_locks_is_a_fault_of_the_run_directory(
    of_head: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("entrypoint.run.lease.fcntl.flock", no_locks)
    assert head.serve(of_head, Head(0, 0, "a test"), {}, Inbox()) == ExitCode.RUN_DIR
    said = f"{RunFiles(of_head.run_dir).leases / '1'}: No locks available: put it on a file system"
    assert caplog.messages[-1].startswith(said)
