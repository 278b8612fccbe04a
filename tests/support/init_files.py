"""The files that `rollcall init` writes, and the jobs that they start."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from entrypoint.commands import init
from entrypoint.commands.init_platforms import PLATFORMS
from tests.support.compose_files import words_of_script
from tests.support.model_files import write_files

PLACES = sorted(set(PLATFORMS) - {"none"})


def job_of(platform: str, directory: Path) -> list[str]:
    """Return the words after `rollcall` that a platform's file in the directory starts."""

    def content(name: str) -> str:
        return (directory / name).read_text()

    if platform == "kubernetes":
        words: list[str] = yaml.safe_load(content("values.yaml"))["job"]
        return words
    if platform == "runpod":
        command: list[str] = json.loads(content("head.json"))["dockerStartCmd"]
        return command
    if platform == "compose":
        node = yaml.safe_load(content("compose.yaml"))["services"]["node"]
        default = node["environment"]["ROLLCALL_JOB"]
        return shlex.split(default.removeprefix("${ROLLCALL_JOB:-").removesuffix("}"))
    if platform == "slurm":
        lines = content("rollcall.sbatch").splitlines()
        (given,) = [line for line in lines if line.startswith("set -- ")]
        return shlex.split(given)[2:-1]
    if platform == "dstack":
        line = shlex.split(" ".join(yaml.safe_load(content("task.dstack.yml"))["commands"]))
    else:
        line = words_of_script(yaml.safe_load(content("task.yaml"))["run"])
    return line[line.index("rollcall") + 1 :]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with data and a model, as it is on a cluster: the shared storage itself."""
    rows = [{"question": f"{n}+1=", "solution": str(n + 1)} for n in range(6)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_files(tmp_path / "model")
    return tmp_path


def written(run: Path, *words: str) -> int:
    shared = ["--shared", str(run)] if "--platform" in words else []
    return init.main(["--yes", "--dir", str(run), *shared, "--model", "model", *words])
