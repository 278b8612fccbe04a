"""Every command of the first hour on a GPU exists, with every flag; each stage runs on a CPU."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.repository import ROOT

SCRIPT = ROOT / "bench" / "gpu_hour.sh"
STAGES = re.search(r"^STAGES=\((.*?)\)", SCRIPT.read_text(), re.M | re.S)
assert STAGES
NAMES = STAGES[1].split()


def hour(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        env=os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("smoke", ["0", "1"])
@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_names_no_command_and_no_flag_that_is_missing(stage: str, smoke: str) -> None:
    said = hour("--dry-run", stage, SMOKE=smoke)
    assert (said.returncode, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert lines
    for line in lines:
        dollar, python, module_flag, module, *words = shlex.split(line)
        assert (dollar, python, module_flag) == ("$", sys.executable, "-m")
        if module == "pytest":
            resolve_tests(words)
        elif words or module != "bench.sides.versions":
            import_module(module)._parser().parse_args(words)


def resolve_tests(words: list[str]) -> None:
    """Fails if a file is missing, or if no test in it has the name that is asked for."""
    assert words[: words.index("gpu") + 1] == ["-q", "-n", "0", "-m", "gpu"]
    rest = words[words.index("gpu") + 1 :]
    files = [word for word in rest if word.startswith("tests/")]
    text = "".join((ROOT / file).read_text() for file in files)
    assert "pytest.mark.gpu" in text
    if "-k" in rest:
        named = rest[rest.index("-k") + 1].removeprefix("not ")
        assert re.search(rf"^def test_\w*{named}", text, re.M)


def test_a_flag_that_is_missing_is_found() -> None:
    with pytest.raises(SystemExit):
        import_module("bench.gpu")._parser().parse_args(["--none-such"])


@pytest.mark.parametrize("words", [(), ("none-such",), ("update", "none-such")])
def test_a_stage_that_is_missing_is_refused_with_the_others_names(words: tuple[str, ...]) -> None:
    said = hour("--dry-run", *words, SMOKE="1")
    assert said.returncode == 64
    assert "stages: versions update" in said.stdout


def test_make_runs_the_stages() -> None:
    words = ["make", "--dry-run", "--silent", "gpu-hour", "STAGE=update"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout
    assert "bench/gpu_hour.sh update" in said


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_runs_on_a_cpu(stage: str, tmp_path: Path) -> None:
    said = hour(stage, SMOKE="1", OUT=str(tmp_path))
    assert said.returncode == 0, said.stdout[-3000:] + said.stderr[-3000:]
    lines = (tmp_path / f"{stage}.log").read_text().splitlines()
    commands = [line for line in lines if line.startswith("$ ")]
    results = [json.loads(line) for line in lines if line.startswith('{"')]
    measured = [command for command in commands if "-m bench." in command]
    assert len(results) == len(measured)
