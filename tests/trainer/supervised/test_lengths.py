"""Rows that are longer than --max_len: cut or left out as the page says, and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from tests.support.tiny_run import Tiny, to_argv
from trainer.supervised.__main__ import main
from trainer.supervised.lengths import FITS

LONG = "1+1+1+1="
ROWS: dict[str, list[dict[str, str]]] = {
    "sft": [
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": "1=", "completion": "1111111111"},
        *[{"prompt": LONG, "completion": "4"}] * 2,
    ],
    "dpo": [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": "1=", "chosen": "1", "rejected": "1111111111"},
        *[{"prompt": LONG, "chosen": "4", "rejected": "5"}] * 2,
    ],
    "rm": [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": "1=", "chosen": "1", "rejected": "1"},
        {"prompt": "1=", "chosen": "1", "rejected": "1111111111"},
        {"prompt": LONG, "chosen": "4", "rejected": "5"},
    ],
}
TOLD = {
    "sft": "2 of 4 rows are left out, because their prompts leave no room for an answer; "
    "1 of 4 rows are cut at their end",
    "dpo": "2 of 4 rows are left out, because their prompts leave no room for an answer; "
    "1 of 4 rows are cut at their end",
    "rm": "2 of 4 rows are left out, because a prompt with its answer is longer",
}


def argv(stage: str, tiny: Tiny, root: Path, **flags: Any) -> list[str]:
    data = root / f"{stage}.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS[stage])))
    given = {
        "pretrain": tiny.model,
        "dataset": data,
        "prompt_key": None if stage == "sft" else "prompt",
        "save_path": root / "out",
        "train_batch_size": 2,
        "max_steps": 1,
        "max_len": 8,
        **flags,
    }
    return [stage, *to_argv(given)]


@pytest.mark.parametrize("stage", ROWS)
def test_what_is_cut_and_what_is_left_out_is_said(
    stage: str, tiny: Tiny, tmp_path: Path, trainers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv(stage, tiny, tmp_path)) == ExitCode.FINISHED
    data = tmp_path / f"{stage}.jsonl"
    assert f"--max_len 8: of {data}, {TOLD[stage]}\n" in capsys.readouterr().out
    (trainer,) = trainers
    batch = trainer.data_collator([*trainer.train_dataset])
    assert batch["input_ids"].shape[0] == 2 * (1 if stage == "sft" else 2)
    assert batch["attention_mask"].sum(1).max() == (6 if stage == "rm" else 8)


@pytest.mark.parametrize("flag", ["dataset", "eval_dataset"])
def test_data_of_which_nothing_fits_are_a_fault(
    flag: str, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "long.jsonl"
    data.write_text(json.dumps(ROWS["sft"][-1]))
    assert main(argv("sft", tiny, tmp_path, **{flag: data})) == ExitCode.USAGE
    assert f"--max_len 8: all rows of {data} are left out" in capsys.readouterr().err


def test_rows_that_fit_need_no_word(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv("rm", tiny, tmp_path, max_len=16)) == ExitCode.FINISHED
    assert "--max_len" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prompt", "answer", "trains"), [(0, 1, False), (0, 2, True), (1, 1, True), (8, 1, False)]
)
def test_an_answer_trains_if_one_of_its_tokens_follows_another(
    prompt: int, answer: int, trains: bool
) -> None:
    tokens = {"prompt_ids": [1] * prompt, "chosen_ids": [2] * answer, "rejected_ids": [3] * answer}
    assert FITS["dpo"].keeps(tokens, 8) == trains
