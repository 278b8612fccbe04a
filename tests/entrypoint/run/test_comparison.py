"""Runs side by side, as the page and `rollcall report RUN RUN` show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.commands import report
from entrypoint.run import comparison
from entrypoint.run.comparison import Compared
from entrypoint.run.curves import Points
from tests.support import reported_runs


def of_flags(name: str, recipe: str, flags: Mapping[str, str]) -> Compared:
    path = Path(f"/runs/{name}/run")
    return Compared(
        name=name,
        path=path,
        recipe=recipe,
        flags=flags,
        steps=0,
        seconds=0.0,
        measured=Points().measured(),
    )


def test_a_flag_that_a_run_of_another_trainer_cannot_have_is_no_default() -> None:
    runs = [
        of_flags("a", "verl", {"": "verl.trainer.main_ppo", "data.seed": "1"}),
        of_flags("b", "builtin", {"seed": "1", "ckpt_path": "/x", "out": "/runs/b/out"}),
        of_flags("c", "builtin", {"ema": "", "out": "/runs/c/out", "url": "http://127.0.0.1:7/x"}),
        of_flags("d", "builtin", {}),
    ]
    texts = {
        row["name"]: [cell["text"] for cell in row["cells"]] for row in comparison.of(runs)["flags"]
    }
    assert texts == {
        "command": ["verl.trainer.main_ppo", "–", "–", "unknown"],
        "data.seed": ["1", "–", "–", "unknown"],
        "ema": ["–", "default", "no value", "unknown"],
        "out": ["–", "/runs/b/out", "/runs/c/out", "unknown"],
        "seed": ["–", "1", "default", "unknown"],
        "url": ["–", "default", "http://127.0.0.1:7/x", "unknown"],
    }
    places = [of_flags(name, "builtin", {"out": f"/runs/{name}/out"}) for name in "bc"]
    assert comparison.of(places)["flags"] == [], "the place of a run is no difference"
    rates = ("3e-4", "0.0003")
    same = [
        of_flags(name, "builtin", {"data": "/runs/b/data.jsonl", "lr": rate})
        for name, rate in zip("bc", rates, strict=True)
    ]
    assert comparison.of(same)["flags"] == [], "c was trained on the data of b"


def run_of(root: Path, *rows: Mapping[str, float], lr: str = "1e-6") -> Path:
    run = reported_runs.with_faults(root)
    row = json.loads(run.run.read_text())
    run.run.write_text(json.dumps({**row, "flags": {"seed": "1", "lr": lr}}))
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


ROWS = (
    {"step": 0, "eval/accuracy": 0.5, "eval/pass1": 0.5},
    {"step": 1, "train/reward": 0.25, "train/kl": 0.0, "timing/step": 9.0},
    {"step": 2, "train/reward": 0.75, "train/kl": 0.01, "timing/step": 3.0},
    {"step": 3, "train/reward": 0.5, "train/kl": 0.02, "timing/step": 3.0},
    {"step": 3, "eval/accuracy": 0.75, "eval/pass1": 0.75},
)


def test_two_runs_have_their_last_and_best_values_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = run_of(tmp_path / "low", *ROWS), run_of(tmp_path / "high", ROWS[1], lr="1e-5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert report.main([str(one), str(other)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split("  ") for line in printed.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["low", "high"],
        ["reward, last", "0.5", "0.25"],
        ["reward, best", "0.75 (step 2)", "0.25 (step 1)"],
        ["held-out accuracy, last", "0.75", "–"],
        ["held-out accuracy, best", "0.75 (step 3)", "–"],
        ["KL, last", "0.02", "0"],
        ["steps", "60", "60"],
        ["time", "1 h 3 min", "1 h 3 min"],
        ["time of a step, median", "3 s", "9 s"],
        [],
        ["flags that differ:"],
        ["low", "high"],
        ["lr", "1e-6", "1e-5"],
    ]
    assert report.main([str(one), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["path"] for run in found["runs"]] == [str(one), str(other)]
    kl = next(row for row in found["values"] if row["metric"] == "train/kl")
    assert [cell["value"] for cell in kl["cells"]] == [0.02, 0.0]
    monkeypatch.setenv("COLUMNS", "30")
    assert report.main([str(one), str(other)]) == 0
    assert "reward, last\n  low   0.5\n  high  0.25\n" in capsys.readouterr().out


def test_a_graded_reward_is_called_a_reward_also_where_all_of_one_evaluation_were_0_or_1(
    tmp_path: Path,
) -> None:
    graded = [{**row, "eval/reward": 0.75} if row["step"] == 3 else row for row in ROWS[-1:]]
    found = comparison.read(RunFiles(run_of(tmp_path / "a", *ROWS[:-1], *graded)))
    assert "eval/accuracy" not in found.measured
    assert found.measured["eval/reward"].last.value == 0.75
    trl = [{"step": 1, "eval/accuracy": 0.5, "eval/reward": 3.5}]
    found = comparison.read(RunFiles(run_of(tmp_path / "b", *trl)))
    assert {"eval/accuracy", "eval/reward"} <= found.measured.keys(), "another trainer has both"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a", "b", "--html", "x"], ExitCode.USAGE, "--html is of one run"),
        ([*"abcdefghi"], ExitCode.USAGE, "8 runs at most"),
        (["a", "nothing"], ExitCode.USAGE, "nothing does not exist: give the run's directory"),
        (["a", "cluster"], ExitCode.RUN_DIR, "cluster: it has submitted jobs alone: give one"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: ExitCode,
    said: str,
) -> None:
    run_of(tmp_path / "a", *ROWS)
    reported_runs.cluster(tmp_path / "cluster")
    monkeypatch.chdir(tmp_path)
    assert report.main(words) == code
    assert said in capsys.readouterr().err
