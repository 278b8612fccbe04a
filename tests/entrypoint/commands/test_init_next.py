"""The commands that `init` prints at its end do what they say."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from entrypoint.commands import init
from tests.support.init_files import PLACES, job_of, run, written
from tests.support.model_files import write_files

__all__ = ["run"]


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("platform", ["none", *PLACES])
def test_the_printed_commands_work_as_they_are_typed(
    tmp_path: Path, platform: str, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a shell without a setting, and without a word of warning."""
    run = tmp_path / "a run"
    run.mkdir()
    write_files(run / "model")
    row = json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n"
    (run / "sums.jsonl").write_text(200 * row)
    words = ("--model", str(run / "model"), "--data", str(run / "sums.jsonl"))
    where = ("--platform", platform, "--dir", str(run), "--nodes", str(nodes))
    assert init.main([*words, *where, "--yes"]) == 0
    said = capsys.readouterr().out
    printed = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    typed = [printed["look"]]
    if platform == "none":
        typed.append(printed["start"].replace(" up ", " plan "))
    for command in typed:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        told = [line for line in done.stderr.splitlines() if not line.startswith("waiting for ")]
        assert (done.returncode, told) == (0, []), command
        assert re.search(rf"^expected workers +{nodes - 1} ", done.stdout, re.MULTILINE)
    for name in ("copy", "start"):
        subprocess.run(["sh", "-n", "-c", printed.get(name, "")], check=True)
    if platform not in ("none", "compose"):
        assert re.search(r"^run dir +/\S+/run  \(ROLLCALL_RUN_DIR\)$", done.stdout, re.MULTILINE)
    if platform == "none":
        assert f"{run}/run" in done.stdout
        assert (run / "run").is_dir()


def test_more_nodes_without_a_platform_have_the_workers_line(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(run, "--nodes", "3") == 0
    said = capsys.readouterr().out
    assert "EXPECTED_WORKERS=2 " in said
    assert re.search("each of the 2 others.*\n.* RAY_WORKER=1 ROLLCALL_HEAD_ADDRESS=HEAD ", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--gpus", "8", "--model", "Qwen/Qwen2.5-0.5B"),
            r"this command would run: 1 step on 1 node, with \S+ GiB or more of its 74.5 GiB",
        ),
        (
            ("--gpus", "1", "--model", "meta-llama/Llama-2-70b-hf"),
            "this command would not start, for 1 fault: no layout fits: by the estimate a GPU",
        ),
        (
            ("--gpus", "0", "--model", "meta-llama/Llama-2-70b-hf"),
            r"this command does not fit: it needs \S+ GiB or more",
        ),
    ],
)
def test_whether_the_model_fits_is_said(
    run: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(run, *words) == 0
    assert re.search(rf"^plan:  {said}", capsys.readouterr().out, re.MULTILINE)


def test_thousands_of_nodes_are_not_planned_at_once(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(run, "--nodes", "10000", "--gpus", "8") == 0
    said = capsys.readouterr().out
    assert "plan:  " not in said
    assert "plan --nodes 10000 --gpus 8 " in said


def test_two_nodes_have_one_other(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert written(run, "--nodes", "2") == 0
    assert "on the other node, HEAD being" in capsys.readouterr().out


@pytest.mark.parametrize("platform", ["slurm", "kubernetes"])
def test_the_printed_copy_brings_what_the_nodes_read(
    tmp_path: Path, platform: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, shared = tmp_path / "run", tmp_path / "shared"
    (run / "data").mkdir(parents=True)
    (run / "data" / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    write_files(tmp_path / "model")
    words = ("--data", "data/rows.jsonl", "--model", str(tmp_path / "model"))
    where = ("--dir", str(run), "--shared", str(shared), "--platform", platform, "--yes")
    assert init.main([*words, *where]) == 0
    (copy,) = re.findall("^copy: (.*)$", capsys.readouterr().out, re.MULTILINE)
    here = copy.replace("kubectl exec --stdin job/data --", "env")  # the pod has the storage, too
    subprocess.run(["sh", "-c", here], check=True)
    named = [word.partition("=")[2].partition(":")[0] for word in job_of(platform, run)]
    assert len(named) == 4
    assert all(Path(one).exists() for one in named)


def test_compose_needs_no_copy_of_what_lies_beside_its_file(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(run, "--platform", "compose", "--nodes", "2") == 0
    said = capsys.readouterr().out
    assert "copy:" not in said
    assert re.search(r"on the other node.*\n.* RAY_WORKER=1 .* docker compose up\n", said)
