"""The command that a person copies to start a head again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.node import start_again

ID = "0123456789ab"
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_JOB_ID": "7",
}


def settings(**more: str) -> Settings:
    return read_settings({"ROLLCALL_RECIPE": "command", **more}, ["true"])


def test_the_line_starts_the_same_program_with_the_same_words_variables_and_directory(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "it's a job"
    directory.mkdir()
    show = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['ROLLCALL_RUN_DIR'])"
    program = tmp_path / "rollcall"
    program.write_text(f"#!{sys.executable}\n{show}\n")
    program.chmod(0o755)
    words = [str(program), "up", "--", "python", "train it.py", "--lr=$1"]
    environ = {"ROLLCALL_RUN_DIR": "/runs/my run", "HOME": "/root", "WANDB_API_KEY": "hidden"}
    line = start_again.typed(words, environ, directory)
    assert "hidden" not in line
    assert "HOME" not in line
    path = f"{tmp_path}:{os.environ['PATH']}"
    shell = ["sh", "-c", line]
    said = subprocess.run(shell, env={"PATH": path}, capture_output=True, text=True, timeout=60)
    assert said.stdout == f"{words[1:]} {directory} /runs/my run\n", said.stderr


def test_a_module_is_called_by_its_interpreter() -> None:
    line = start_again.typed(["/opt/x/entrypoint/__main__.py", "up"], {}, Path("/job"))
    assert line == f"cd /job && {sys.executable} -m entrypoint up"


@pytest.mark.parametrize(("engine", "made"), start_again.ENGINES.items())
def test_a_container_is_started_by_the_id_that_names_it(
    tmp_path: Path, engine: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in start_again.OTHERS_START_IT:
        monkeypatch.delenv(name, raising=False)
    marker = tmp_path / made.lstrip("/")
    marker.parent.mkdir(exist_ok=True)
    marker.touch()
    assert start_again.command(settings(), ID, tmp_path) == f"{engine} start --attach {ID}"
    assert start_again.command(settings(), "gpu-1", tmp_path) == ""


@pytest.mark.parametrize("variables", [SLURM, {}])
def test_what_a_platform_has_started_has_no_line_to_type(
    tmp_path: Path, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not variables:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert start_again.command(settings(**variables), ID, tmp_path) == ""
