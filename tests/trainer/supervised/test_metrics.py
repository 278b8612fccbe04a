"""The rows that a stage writes for curves: their names, their steps, and what a resume drops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.run.curves import Curves
from tests.support.tiny_run import Tiny, to_argv
from trainer.supervised.__main__ import main
from trainer.supervised.metrics import renamed

PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "="} for n in range(16)]


def trained(tiny: Tiny, run: Path, **flags: Any) -> list[dict[str, Any]]:
    """The rows of a reward model's run, six steps of it."""
    run.mkdir(exist_ok=True)
    (run / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    given = {
        "pretrain": tiny.model,
        "dataset": run / "pairs.jsonl",
        "eval_dataset": run / "pairs.jsonl",
        "eval_steps": 3,
        "prompt_key": "prompt",
        "run_dir": run,
        "train_batch_size": 8,
        "learning_rate": 0.01,
        "max_steps": 6,
        "max_epochs": 6,
        "logging_steps": 4,
        **flags,
    }
    assert main(["rm", *to_argv(given)]) == ExitCode.FINISHED
    lines = RunFiles(run).metrics.read_text().splitlines()
    return [json.loads(line) for line in lines]


def steps(rows: list[dict[str, Any]], name: str) -> list[int]:
    return [row["step"] for row in rows if name in row]


def test_a_row_has_the_numbers_that_have_a_name_and_are_finite() -> None:
    logs = {"loss": 2, "accuracy": 0.5, "eval_loss": math.nan, "epoch": 1.0, "grad_norm": "high"}
    assert renamed(logs) == {"train/loss": 2.0, "train/acc": 0.5}


def test_pairs_count_where_a_stage_has_both_accuracies() -> None:
    logs = {"mean_token_accuracy": 0.9, "rewards/accuracies": 0.6}
    assert renamed(logs) == {"train/acc": 0.6}


def test_a_stage_writes_rows_at_its_logging_steps_evaluations_and_last_step(
    tiny: Tiny, tmp_path: Path
) -> None:
    rows = trained(tiny, tmp_path / "run", save_steps=4)
    assert steps(rows, "train/loss") == [4, 6]
    assert steps(rows, "eval/loss") == steps(rows, "eval/accuracy") == [3, 6]
    for name in ("train/lr", "train/acc", "timing/step", "perf/tokens_per_second"):
        assert steps(rows, name) == [4, 6], name
    shown = Curves(RunFiles(tmp_path / "run").metrics).rows()["series"]
    assert {"train/loss", "train/lr", "train/acc", "eval/loss", "eval/accuracy"} <= shown.keys()

    resumed = trained(
        tiny,
        tmp_path / "run",
        save_steps=4,
        resume_from_checkpoint=RunFiles(tmp_path / "run").checkpoints / "checkpoint-4",
    )
    assert [row["step"] for row in resumed] == [row["step"] for row in rows]
    assert resumed[:2] == rows[:2]
    assert resumed[-2:] != rows[-2:]


def test_a_run_without_an_interval_saves_every_tenth_of_its_steps(
    tiny: Tiny, tmp_path: Path
) -> None:
    trained(tiny, tmp_path / "run", max_steps=20, max_epochs=20, eval_steps=20, max_ckpt_num=100)
    found = {path.name for path in RunFiles(tmp_path / "run").checkpoints.glob("checkpoint-*")}
    assert found == {f"checkpoint-{step}" for step in range(2, 21, 2)}


def test_a_run_whose_user_wants_no_checkpoints_has_none(tiny: Tiny, tmp_path: Path) -> None:
    trained(tiny, tmp_path / "run", save_steps=-1)
    assert not list(RunFiles(tmp_path / "run").checkpoints.glob("checkpoint-*"))
