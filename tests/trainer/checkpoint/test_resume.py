"""A checkpoint of another version, or of other flags, is resumed from or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from contract.manifest import checkpoint_path, write_manifest
from tests.support.tiny_run import GRPO, Tiny, events, train
from trainer.checkpoint import resume
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.writer import RUN_STATE, DriverState


def test_a_checkpoint_of_another_version_is_resumed_from_or_named(
    tiny: Tiny, run_dir: Path
) -> None:
    train(tiny.config(run_dir, max_steps=1, **GRPO))
    directory = checkpoint_path(run_dir / "checkpoints", 1)
    row = json.loads((directory / RUN_STATE).read_text())
    del row["reward_moments"]
    (directory / RUN_STATE).write_text(json.dumps(row | {"later": 1}))
    write_manifest(directory, 1)
    assert train(tiny.config(run_dir, max_steps=2, **GRPO)).step == 2

    directory = checkpoint_path(run_dir / "checkpoints", 2)
    del row["prompts"]
    (directory / RUN_STATE).write_text(json.dumps(row | {"step": 2}))
    write_manifest(directory, 2)
    with pytest.raises(ResumeError, match=f"{directory / RUN_STATE} cannot be read: .*'prompts'"):
        train(tiny.config(run_dir, max_steps=3, **GRPO))


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ({"later": 1}, "has the part 'later', which is unknown here. Go on with the version of"),
        ({"adam": None}, "is incomplete: .* 'adam'. Go on with the version of Rollcall that wrote"),
    ],
)
def test_a_shard_of_another_version_is_named(
    tiny: Tiny, run_dir: Path, later: dict[str, Any], says: str
) -> None:
    train(tiny.config(run_dir, max_steps=1, **GRPO))
    directory = checkpoint_path(run_dir / "checkpoints", 1)
    content = torch.load(directory / "policy.pt", weights_only=True) | later
    known = {part: value for part, value in content.items() if value is not None}
    torch.save(known, directory / "policy.pt")
    write_manifest(directory, 1)
    with pytest.raises(ResumeError, match=f"{directory / 'policy.pt'} {says}"):
        train(tiny.config(run_dir, max_steps=2, **GRPO))


def test_a_shard_with_a_data_type_that_is_unknown_is_named(tiny: Tiny, run_dir: Path) -> None:
    train(tiny.config(run_dir, max_steps=1, **GRPO))
    directory = checkpoint_path(run_dir / "checkpoints", 1)
    shard = directory / "policy.pt"
    with ZipFile(shard) as whole:
        files = [(one, whole.read(one)) for one in whole.infolist()]
    with ZipFile(shard, "w") as changed:
        for one, content in files:
            changed.writestr(one, content.replace(b"FloatStorage", b"Float9Storage"))
    write_manifest(directory, 1)
    with pytest.raises(ResumeError, match=f"{shard} cannot be read: .*Float9Storage.*version of"):
        train(tiny.config(run_dir, max_steps=2, **GRPO))


@pytest.mark.parametrize("gone", ["policy.pt", RUN_STATE])
def test_a_file_of_a_checkpoint_that_vanishes_while_it_is_read_costs_that_checkpoint_alone(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    flags = {**GRPO, "save_steps": 1, "max_ckpt_num": 9}
    train(tiny.config(run_dir, max_steps=2, **flags))
    newest = checkpoint_path(run_dir / "checkpoints", 2)
    begin = resume._from_disk

    def deleted_first(to: Any, step: int) -> DriverState:
        if step == 2:
            (newest / gone).unlink()
        return begin(to, step)

    monkeypatch.setattr(resume, "_from_disk", deleted_first)
    config = tiny.config(run_dir, max_steps=3, **flags)
    assert train(config).step == 3
    assert [one["details"]["step"] for one in events(config, "resume")] == [0, 1]
    (skipped,) = events(config, "checkpoint-skipped")
    assert skipped["sentence"] == f"Checkpoint global_step_2 is skipped: {gone} is missing."


def test_a_named_checkpoint_whose_file_vanishes_while_it_is_read_is_named(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny.config(run_dir, max_steps=1, **GRPO))
    shard = checkpoint_path(run_dir / "checkpoints", 1) / "policy.pt"
    begin = resume._from_disk

    def deleted_first(to: Any, step: int) -> DriverState:
        shard.unlink()
        return begin(to, step)

    monkeypatch.setattr(resume, "_from_disk", deleted_first)
    with pytest.raises(ResumeError, match=r"--load_step 1: .* complete checkpoint: policy.pt is"):
        train(tiny.config(run_dir, max_steps=2, load_step=1, **GRPO))


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ({"lora_rank": 2}, {}, "it has adapters of rank 2, and --lora_rank is 0"),
        ({}, {"lora_rank": 2}, "it has no adapters, and --lora_rank is 2"),
        ({"lora_rank": 2}, {"lora_rank": 4}, "it has adapters of rank 2, and --lora_rank is 4"),
        (
            {"lora_rank": 2, "target_modules": "q_proj"},
            {"lora_rank": 2, "target_modules": ("q_proj", "v_proj")},
            "its adapters are on q_proj, and --target_modules puts them on q_proj v_proj",
        ),
        (
            {"lora_rank": 2, "lora_alpha": 4},
            {"lora_rank": 2, "lora_alpha": 8},
            "its adapters have --lora_alpha 4, and here it is 8",
        ),
    ],
)
def test_a_checkpoint_with_other_adapters_names_the_flag(
    tiny: Tiny, run_dir: Path, before: dict[str, Any], now: dict[str, Any], says: str
) -> None:
    train(tiny.config(run_dir, max_steps=1, **GRPO, **before))
    with pytest.raises(ResumeError, match=f"global_step_1 does not fit .* of LoRA: {says}"):
        train(tiny.config(run_dir, max_steps=2, **GRPO, **now))


def test_an_older_checkpoint_that_does_not_say_its_alpha_is_taken(
    tiny: Tiny, run_dir: Path
) -> None:
    train(tiny.config(run_dir, max_steps=1, lora_rank=2, **GRPO))
    directory = checkpoint_path(run_dir / "checkpoints", 1)
    state = json.loads((directory / RUN_STATE).read_text())
    assert state.pop("lora_alpha") == 16
    (directory / RUN_STATE).write_text(json.dumps(state))
    config = tiny.config(run_dir, max_steps=2, save_steps=1, lora_rank=2, lora_alpha=8, **GRPO)
    assert train(config).lora_alpha == 8


def test_a_checkpoint_without_a_critic_is_refused_in_a_sentence(tiny: Tiny, run_dir: Path) -> None:
    train(tiny.config(run_dir, max_steps=1, **GRPO))
    with pytest.raises(ResumeError, match="global_step_1 has no critic: the run had none until"):
        train(tiny.config(run_dir, max_steps=2, advantage_estimator="gae"))
