"""An unfit node, as its head and its doctor tell of it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.server import ControlServer
from entrypoint.commands import doctor
from entrypoint.config.read import read_settings
from entrypoint.node import unfit_report
from entrypoint.preflight.check import Check
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.verdict import Finding, Verdict
from tests.support.control import control_server

TOKEN = "correct-horse-battery"
FIT = Check("t.fit", "?", lambda _: Finding(Verdict.PASS, "fine"))


@pytest.fixture
def head(tmp_path: Path, free_port: int) -> Iterator[ControlServer]:
    me = NodeInfo(node="head", address="127.0.0.1", versions={"ray": "2.55.0"})
    registry = NodeRegistry(me, 2, "first")
    with control_server(tmp_path, free_port, TOKEN, registry) as control:
        yield control


def environ(port: int, **more: str) -> dict[str, str]:
    given = {
        "RAY_WORKER": "1",
        "ROLLCALL_HEAD_ADDRESS": "127.0.0.1",
        "ROLLCALL_CONTROL_PORT": str(port),
        "ROLLCALL_NODE_NAME": "unlucky",
        "ROLLCALL_TOKEN": TOKEN,
    }
    return given | more


def test_an_unfit_worker_is_on_the_roll_with_what_failed(
    head: ControlServer, free_port: int
) -> None:
    settings = read_settings(environ(free_port))
    unfit_report.report(settings, ("gpu.ecc: GPU 1: 2 uncorrected memory errors",))
    assert head.state()["refused"] == {
        "unlucky": "unlucky is not fit: gpu.ecc: GPU 1: 2 uncorrected memory errors"
    }
    assert "unlucky was refused: unlucky is not fit: gpu.ecc" in str(head.roll())


@pytest.mark.parametrize(("token", "tries"), [("", 0), (TOKEN, 1)])
def test_an_unfit_worker_that_nobody_hears_ends_all_the_same(
    token: str, tries: int, closed_port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given = environ(closed_port, ROLLCALL_RUN_DIR=str(tmp_path)) | {"ROLLCALL_TOKEN": token}
    unfit_report.report(read_settings(given), ("gpu.ecc: bad",))
    refused = f"the head is not told: 127.0.0.1 port {closed_port}: Connection refused"
    assert caplog.messages == [refused] * tries


def test_an_unfit_worker_with_a_wrong_token_ends_all_the_same(
    head: ControlServer, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given = environ(free_port, ROLLCALL_TOKEN="of-another-cluster")
    unfit_report.report(read_settings(given), ("gpu.ecc: bad",))
    assert "the head is not told: " in caplog.text
    assert head.state()["refused"] == {}


def test_the_whole_program_tells_its_head_before_it_ends(
    head: ControlServer, free_port: int, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file/run"
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    missing = {"ROLLCALL_RUN_DIR": str(below)}
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint"],
        env=kept | environ(free_port, **missing),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 73, done.stdout
    assert f"host.run_dir: {below} does not exist" in head.state()["refused"]["unlucky"]


def test_the_doctor_tells_of_the_other_nodes_where_the_head_answers(
    head: ControlServer,
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "run_checks", partial(run_checks, checks=(FIT,)))
    settings = read_settings(environ(free_port))
    unfit_report.report(settings, ("gpu.ecc: bad",))
    assert doctor.main(settings, False) == 0
    assert "roll: unlucky: refused: unlucky is not fit: gpu.ecc: bad" in capsys.readouterr().out
    assert doctor.main(settings, True) == 0
    assert list(json.loads(capsys.readouterr().out)["roll"]["refused"]) == ["unlucky"]


def test_the_doctor_needs_no_head(
    closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run_checks", partial(run_checks, checks=(FIT,)))
    assert doctor.main(read_settings(environ(closed_port)), True) == 0
    assert "roll" not in json.loads(capsys.readouterr().out)


def test_the_doctor_says_of_gpus_in_one_line_that_there_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = [
        Check(f"gpu.{name}", "?", lambda _: Finding(Verdict.SKIP, "no GPU on this machine"))
        for name in ("count", "ecc", "burn")
    ]
    monkeypatch.setattr(doctor, "run_checks", partial(run_checks, checks=(FIT, *absent)))
    assert doctor.main(read_settings({}), False) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["PASS t.fit: fine", "SKIP gpu.* (3 checks): no GPU on this machine"]
