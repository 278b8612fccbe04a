"""`plan` says what a node would do, masks secrets, does nothing, and starts fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from entrypoint import plan
from entrypoint.settings import Settings, SettingsError

SECRET = "9f86d081884c7d659a2feaa0c55ad015"
WORKER = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123"}


def run_plan(
    environ: dict[str, str], *arguments: str, interpreter: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *interpreter, "-m", "entrypoint", "plan", *arguments],
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_plan_has_what_the_design_promises() -> None:
    row = plan.plan(Settings.read(WORKER))
    assert row["role"] == "worker"
    assert row["head_address"] == "abc123.runpod.internal"
    assert row["expected_workers"] is None
    assert row["recipe"] == "builtin"
    assert row["run_dir"] == "/checkpoints"
    assert row["platform"] is None
    assert row["sources"]["head_address"] == "HEAD_POD_ID"
    assert row["faults"] == []
    assert set(plan.plan(Settings.read({}))) == set(row)


def test_secrets_are_masked_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"WANDB_API_KEY": SECRET, "ROLLCALL_TOKEN": SECRET[::-1], "HF_TOKEN": "hf_123456"}
    job = ["--use_wandb", SECRET, "--note", "hf_123456", "--api_key=hunter22"]
    for as_json in (True, False):
        assert plan.main(Settings.read(environ, job), as_json) == 0
    printed = "".join(capsys.readouterr())
    for secret in (SECRET, SECRET[::-1], "hf_123456", "hunter22"):
        assert secret not in printed
    assert "--note" in printed


def test_faults_of_settings_and_of_the_role_end_with_64(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.read({"EXPECTED_WORKERS": "two"})
    for given in (caught.value, Settings.read({"RAY_WORKER": "1"})):
        assert plan.main(given, True) == 64
        (fault,) = json.loads(capsys.readouterr().out)["faults"]
        assert set(fault) == {"variable", "value", "problem", "remedy"}
        assert plan.main(given, False) == 64
        assert fault["remedy"] in capsys.readouterr().err


def test_a_terminal_gets_a_table_with_what_decided_each_fact(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert plan.main(Settings.read(WORKER | {"ROLLCALL_JOB": "--note [bold]"}), False) == 0
    printed = capsys.readouterr().out
    assert "decided by" in printed
    assert "HEAD_POD_ID" in printed
    assert "[bold]" in printed


def test_the_command_prints_one_object_and_reads_its_own_environment() -> None:
    done = run_plan(WORKER, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["role"] == "worker"


def test_the_command_reports_faults_without_a_traceback() -> None:
    done = run_plan({"RAY_WORKER": "maybe", "ROLLCALL_WROKERS": "2"})
    assert done.returncode == 64
    assert "RAY_WORKER='maybe' is neither yes nor no" in done.stderr
    assert "ROLLCALL_WROKERS" in done.stderr
    assert "Traceback" not in done.stderr


def test_planning_imports_nothing_heavy() -> None:
    done = run_plan({}, interpreter=("-X", "importtime"))
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "entrypoint" in imported
    assert not imported & {"torch", "transformers", "ray", "numpy", "rich", "httpx", "psutil"}
