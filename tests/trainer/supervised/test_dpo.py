"""DPO from pairs: the policy prefers the better answer, tied to a reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from tests.support.tiny_run import Tiny, to_argv
from trainer.supervised.__main__ import main

PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "==="} for n in range(16)]


def trained(tiny: Tiny, root: Path, rows: list[Any] = PAIRS, **flags: Any) -> Path:
    (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {
        "pretrain": tiny.model,
        "dataset": root / "pairs.jsonl",
        "prompt_key": "prompt",
        "save_path": root / "policy",
        "train_batch_size": 8,
        "learning_rate": 0.01,
        "max_steps": 8,
        "max_epochs": 8,
        "logging_steps": 1,
        **flags,
    }
    assert main(["dpo", *to_argv(given)]) == ExitCode.FINISHED
    return root / "policy"


def history(trainer: Any, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]


def test_the_policy_learns_to_prefer_and_the_reference_stays(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    trained(tiny, tmp_path, lr_scheduler="constant")
    (trainer,) = trainers
    assert history(trainer, "loss")[0] == pytest.approx(torch.log(torch.tensor(2.0)).item(), 1e-3)
    assert history(trainer, "rewards/accuracies")[-1] == 1
    reference, first = trainer.ref_model, AutoModelForCausalLM.from_pretrained(tiny.model)
    kept = zip(reference.parameters(), first.parameters(), strict=True)
    assert all(own.equal(given) for own, given in kept)


def test_another_reference_counts(tiny: Tiny, tmp_path: Path, trainers: list[Any]) -> None:
    other = trained(tiny, tmp_path, max_steps=4)
    shutil.copytree(other, tmp_path / "reference")
    trained(tiny, tmp_path, ref_pretrain=tmp_path / "reference", max_steps=1)
    assert history(trainers[1], "loss")[0] > 0.7, "worse than the trained reference"


def test_adapters_leave_the_reference_alone(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    trained(tiny, tmp_path, lora_rank=4, max_steps=1)
    assert history(trainers[0], "loss")[0] == pytest.approx(0.6931, abs=1e-3)


def test_the_flags_choose_the_loss(tiny: Tiny, tmp_path: Path, trainers: list[Any]) -> None:
    trained(tiny, tmp_path, ipo=True, nll_loss_coef=0.2, beta=0.5, max_steps=1)
    (trainer,) = trainers
    assert (trainer.loss_types, trainer.loss_weights) == (["ipo", "sft"], [1.0, 0.2])
    assert trainer.beta == 0.5


def test_both_answers_may_begin_with_the_prompt(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    rows = [{"chosen": "1+1=2", "rejected": "1+1=3"}] * 8
    trained(tiny, tmp_path, rows, prompt_key=None, max_steps=1)
    row = trainers[0].train_dataset[0]
    decode = trainers[0].processing_class.decode
    assert decode(row["prompt_ids"]).replace(" ", "") == "1+1="
    assert decode(row["rejected_ids"], skip_special_tokens=True) == "3"


def test_another_reference_is_refused_where_a_run_without_a_head_goes_on(
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    shutil.copytree(tiny.model, reference)
    monkeypatch.setenv("ROLLCALL_RUN_DIR", str(run))
    given: dict[str, Any] = {"ref_pretrain": reference, "max_steps": 2, "save_steps": 1}
    trained(tiny, tmp_path, **given)
    model = AutoModelForCausalLM.from_pretrained(reference)
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    model.save_pretrained(reference)
    checkpoint = RunFiles(run).checkpoints / "checkpoint-1"
    flags = {"pretrain": tiny.model, "dataset": tmp_path / "pairs.jsonl", "prompt_key": "prompt"}
    words = to_argv({**flags, **given, "resume_from_checkpoint": checkpoint})
    assert main(["dpo", *words]) == ExitCode.USAGE
    assert f"--ref_pretrain {reference} has other weights than" in capsys.readouterr().err
