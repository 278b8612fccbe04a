"""`init` writes a run that `plan` takes, and overwrites nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.exit_codes import ExitCode
from entrypoint.commands import cli, init, plan
from entrypoint.commands.init_platforms import PLATFORMS
from entrypoint.config.read import read_settings
from tests.support.init_files import job_of
from tests.support.model_files import write_files

PLACES = sorted(set(PLATFORMS) - {"none"})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with data and a model, as it is on a cluster: the shared storage itself."""
    rows = [{"question": f"{n}+1=", "solution": str(n + 1)} for n in range(6)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_files(tmp_path / "model")
    return tmp_path


def written(run: Path, *words: str) -> int:
    given = ["--yes", "--dir", str(run), "--shared", str(run), "--model", "model", *words]
    return init.main(given)


def planned(run: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    monkeypatch.chdir(run)
    call = cli.parse(["plan", "--gpu-memory", "80GB", "--memory", "1000GB", *words])
    return plan.plan(read_settings(call.variables, call.arguments), call.planned)


@pytest.mark.parametrize("platform", PLACES)
def test_what_was_written_is_planned(
    run: Path, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the words of the platform's file, and by those that the command prints."""
    assert written(run, "--platform", platform, "--nodes", "2", "--gpus", "4") == 0
    cluster = ("--nodes", "2", "--gpus", "4")
    of_platform = job_of(platform, run)
    assert f"--config={run}/run.yaml" in of_platform
    for words in (("--config", "run.yaml"), tuple(of_platform)):
        row = planned(run, monkeypatch, *cluster, *words)
        assert row["faults"] == []
        assert ":reward, row 1: '1' → 1, " in row["code"][0]
    policy = row["layout"]["groups"][0]
    assert (policy["nodes"], policy["per_node"]) == (2, 4)


@pytest.mark.parametrize("platform", PLACES)
def test_a_platforms_file_has_the_runs_nodes_image_and_directory(run: Path, platform: str) -> None:
    assert (
        written(run, "--platform", platform, "--nodes", "5", "--gpus", "2", "--image", "me/x:1")
        == 0
    )
    texts = {path: (run / path).read_text() for path in _names(platform)}
    first = next(iter(texts.values()))
    nodes = {
        "slurm": "#SBATCH --nodes=5",
        "kubernetes": "nodes: 5",
        "dstack": "nodes: 5",
        "skypilot": "num_nodes: 5",
        "compose": "EXPECTED_WORKERS: ${EXPECTED_WORKERS:-4}",
        "runpod": '"EXPECTED_WORKERS": "4"',
    }
    assert nodes[platform] in first
    if platform != "slurm":  # whose IMAGE is a variable
        assert "me/x:1" in first
        assert "registry.example.com" not in "".join(texts.values())
    if platform != "compose":  # whose RUN_DIR is a variable
        assert f"{run}/run" in first
    for name, text in texts.items():
        assert json.loads(text) if name.endswith(".json") else True
        assert yaml.safe_load(text) if name.endswith(("yaml", "yml")) else True
    if platform == "slurm":
        subprocess.run(["bash", "-n", str(run / "rollcall.sbatch")], check=True)


def _names(platform: str) -> list[str]:
    return [file.name for file in PLATFORMS[platform].files]


def test_the_columns_are_those_of_the_data_and_the_reward_has_a_test_that_passes(
    run: Path,
) -> None:
    assert written(run) == 0
    flags = yaml.safe_load((run / "run.yaml").read_text())
    assert (flags["input_key"], flags["label_key"]) == ("question", "solution")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reward.py"],
        cwd=run,
        capture_output=True,
        text=True,
    )
    assert "2 passed" in done.stdout


def test_a_reward_of_this_package_needs_no_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(run, "--reward", "arithmetic", "--gpus", "1") == 0
    assert not (run / "reward.py").exists()
    assert planned(run, monkeypatch, "--gpus", "1", "--config", "run.yaml")["faults"] == []


def test_nothing_is_overwritten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "reward.py").write_text("mine")
    assert written(run, "--platform", "slurm") is ExitCode.USAGE
    assert "reward.py: there already" in capsys.readouterr().err
    assert (run / "reward.py").read_text() == "mine"
    assert not (run / "run.yaml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--platform", "lsf"], "--platform lsf: it is one of none, slurm, kubernetes"),
        (["--nodes", "0"], "--nodes 0: it is a whole number from 1"),
        (["--gpus", "many"], "--gpus many: it is a whole number from 0"),
        (["--label-key", "the answer"], "--label-key the answer: .* Rename the column"),
        (["--platform", "slrum"], "--platform slrum: did you mean slurm?"),
        (["--modle", "x"], "unknown argument --modle.*did you mean --model"),
    ],
)
def test_a_wrong_argument_ends_with_64_and_writes_nothing(
    run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        written(run, *words)
    assert caught.value.code == ExitCode.USAGE
    assert re.search(said, capsys.readouterr().err)
    assert not (run / "run.yaml").exists()


def test_a_terminal_is_asked_for_what_no_flag_says(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers = {"number of nodes": "2", "where it runs": "dstack"}

    def ask(question: str) -> str:
        asked.append(question)
        return next((answer for words, answer in answers.items() if words in question), "")

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert init.main(["--dir", str(run), "--model", "owner/m", "--gpus", "1"], ask) == 0
    assert not any("the model" in question or "GPUs" in question for question in asked)
    assert len(asked) == 4
    assert "nodes: 2" in (run / "task.dstack.yml").read_text()
    assert yaml.safe_load((run / "run.yaml").read_text())["prompt_data"] == "train.jsonl"


@pytest.mark.parametrize("platform", ["none", "slurm"])
def test_the_printed_command_works_as_it_is_typed(
    tmp_path: Path, platform: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    run.mkdir()
    write_files(run / "model")
    (run / "sums.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    words = ("--model", str(run / "model"), "--data", str(run / "sums.jsonl"))
    assert init.main([*words, "--platform", platform, "--dir", str(run), "--yes"]) == 0
    printed = dict(
        line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line
    )
    look = printed["look"].strip().replace(" up ", " plan ")
    done = subprocess.run(["sh", "-c", look], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if platform == "none":
        assert printed["start"].startswith(look.split(" plan ")[0])
