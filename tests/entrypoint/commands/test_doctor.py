"""`doctor` says whether this machine is fit, and starts nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.commands import doctor
from entrypoint.config.read import read_settings
from entrypoint.preflight.check import Check
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.verdict import Finding, Verdict
from tests.support.control import TOKEN, Head, head, node_info

__all__ = ["head"]

FIT = Check("t.fit", "?", lambda _: Finding(Verdict.PASS, "fine"))
UNFIT = Check("t.unfit", "?", lambda _: Finding(Verdict.FAIL, "broken", "mend it"))


@pytest.mark.parametrize("mode", ["strict", "warn", "off"])
def test_an_unfit_machine_ends_with_76_and_the_names_of_what_failed(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run_checks", partial(run_checks, checks=(FIT, UNFIT)))
    assert doctor.main(read_settings({"ROLLCALL_PREFLIGHT": mode}), False) == 76
    printed = capsys.readouterr()
    assert "FAIL t.unfit: broken → mend it" in printed.out
    assert "t.unfit failed" in printed.err


def test_a_fit_machine_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run_checks", partial(run_checks, checks=(FIT,)))
    assert doctor.main(read_settings({}), True) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["verdict"] == "pass"
    assert row["checks"][0]["name"] == "t.fit"


def test_a_role_that_cannot_be_decided_is_a_fault_of_the_settings() -> None:
    with pytest.raises(ConfigError):
        doctor.main(read_settings({"RAY_WORKER": "1"}), False)


def test_the_command_examines_this_machine(tmp_path: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint", "doctor", "--json"],
        env=kept | {"ROLLCALL_RUN_DIR": str(tmp_path / "missing")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 76, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["host.run_dir"]["verdict"] == "fail"
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_has_not_joined_yet_is_not_there_yet(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run_checks", partial(run_checks, checks=(FIT,)))
    for name, joined in (("gn1", True), ("gn2", False)):
        head.client().check_in(node_info(name), joined=joined)
    where = {"ROLLCALL_URL": f"http://127.0.0.1:{head.port}", "ROLLCALL_TOKEN": TOKEN}
    assert doctor.main(read_settings(where), False) == 0
    said = capsys.readouterr().out
    assert "roll: gn1: there" in said
    assert "roll: gn2: is starting Ray" in said
