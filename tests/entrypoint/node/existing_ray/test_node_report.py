"""The program that a node of an existing Ray runs to say what it is."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.cluster import request_format, storage_proof
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.machine.inventory import installed
from entrypoint.node.existing_ray import node_report
from entrypoint.preflight.check import Report, Result
from entrypoint.preflight.verdict import Verdict

FAILED = Result("gpu.ecc", Verdict.FAIL, "3 errors", "replace it", 0.1)
DOUBTFUL = Result("host.nofile", Verdict.WARN, "1024 files", "raise it", 0.1)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "ROLLCALL_RAY_ADDRESS": "http://10.0.0.2:8265",
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "ROLLCALL_NODE_NAME": "a-node-of-ray",
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_PREFLIGHT": "off",
        "EXPECTED_WORKERS": "1",
    }


def test_its_answer_is_a_check_in_whose_file_the_supervisor_sees(environ: dict[str, str]) -> None:
    row = {**node_report.check_in(read_settings(environ)), "node": "n", "address": "10.0.0.3"}
    info = request_format.node_info(json.dumps(row).encode())
    assert info.versions["ray"] == installed("ray")
    assert info.inventory["cpus"] >= 1
    assert storage_proof.is_there(Path(environ["ROLLCALL_RUN_DIR"]), info.storage)
    assert not info.unfit


@pytest.mark.parametrize(
    ("mode", "unfit"),
    [("strict", ["FAIL gpu.ecc: 3 errors → replace it"]), ("warn", [])],
)
def test_failed_checks_keep_a_node_out_if_they_are_strict(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, mode: str, unfit: list[str]
) -> None:
    asked: list[Settings] = []

    def checks(role: Head, settings: Settings) -> Report:
        asked.append(settings)
        return Report(PreflightMode(mode), [FAILED, DOUBTFUL])

    monkeypatch.setattr(node_report, "run_checks", checks)
    settings = read_settings(environ | {"ROLLCALL_PREFLIGHT": mode})
    row = node_report.check_in(replace(settings, preflight_skip=frozenset({"host.clock"})))
    assert row["unfit"] == unfit
    assert row["warnings"] == ["gpu.ecc", "host.nofile"]
    (of_node,) = asked
    assert of_node.preflight_skip == node_report.STARTS_NOTHING | {"host.clock"}
    assert of_node.ray_address is None  # a node of the job, with the job's checks


def test_a_run_directory_that_takes_no_file_makes_the_node_unfit(
    environ: dict[str, str], tmp_path: Path
) -> None:
    row = node_report.check_in(
        read_settings(environ | {"ROLLCALL_RUN_DIR": str(tmp_path / "none")})
    )
    assert row["storage"] == ""
    (sentence,) = row["unfit"]
    assert "none takes no file: No such file or directory" in sentence


def test_wrong_settings_of_a_node_are_its_answer(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLCALL_NODE_TIMEOUT", "soon")
    monkeypatch.setattr(sys, "argv", ["node_report", json.dumps(environ)])
    assert node_report.main() == 0
    (sentence,) = json.loads(capsys.readouterr().out)["unfit"]
    assert sentence.startswith("ROLLCALL_NODE_TIMEOUT='soon'")


def test_settings_of_a_job_on_a_node_of_ray_are_no_fault_of_the_node(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLCALL_STEP_PATTERN", r"(?P<step>\d+)")
    monkeypatch.setattr(node_report, "check_in", lambda settings: {"recipe": settings.recipe})
    given = environ | {"ROLLCALL_RECIPE": "builtin"}
    monkeypatch.setattr(sys, "argv", ["node_report", json.dumps(given)])
    assert node_report.main() == 0
    assert json.loads(capsys.readouterr().out) == {"recipe": "builtin"}
