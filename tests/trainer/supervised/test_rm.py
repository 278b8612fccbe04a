"""A reward model from pairs, and what reads it: the trainer's scorer and the HTTP server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from contract.exit_codes import ExitCode
from env.types import RewardRequest
from tests.support.hub_server import Hub, ask
from tests.support.tiny_reward_model import write_reward_model
from tests.support.tiny_run import Tiny, to_argv
from trainer.config import reward_models
from trainer.config.job_checks import model_faults
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.settings import RewardSettings
from trainer.supervised.__main__ import main

PAIRS = [
    {"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "=", "margin": 0.5} for n in range(16)
]


def trained(tiny: Tiny, root: Path, name: str = "rm", **flags: Any) -> Path:
    """The reward model that a few steps make."""
    (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    given = {
        "pretrain": tiny.model,
        "dataset": root / "pairs.jsonl",
        "prompt_key": "prompt",
        "save_path": root / name,
        "train_batch_size": 8,
        "learning_rate": 0.01,
        "max_steps": 12,
        "max_epochs": 12,
        "logging_steps": 1,
        **flags,
    }
    assert main(["rm", *to_argv(given)]) == ExitCode.FINISHED
    return root / name


def scorer(model: Path) -> ScalarRewardModel:
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4)
    return ScalarRewardModel(str(model), settings, torch.device("cpu"))


def rewards(model: Path, *texts: str) -> list[float]:
    scores = scorer(model).score([RewardRequest(text, "", None) for text in texts])
    return [score.reward for score in scores]


def test_the_better_answer_gets_the_higher_reward(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    model = trained(tiny, tmp_path)
    better, worse = rewards(model, "7+1=8", "7+1==")
    assert better > worse + 0.5
    ppo = tiny.config(tmp_path / "ppo", remote_rm_url="", reward_pretrain=model)
    assert [*reward_models.faults(ppo), *model_faults(ppo)] == [], "it is a --reward_pretrain"
    row = trainers[0].train_dataset[7]
    inputs = torch.tensor([row["chosen_ids"]])
    with torch.no_grad():
        own = trainers[0].model(input_ids=inputs).logits.item()
    assert own == pytest.approx(better, abs=1e-5), "the served score is that of training"


def test_a_model_whose_end_of_text_is_its_padding_is_scored_where_it_was_trained(
    tiny: Tiny, tmp_path: Path, trainers: list[Any]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny.model, base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.eos_token  # as in Qwen's and Llama's base models
    tokenizer.save_pretrained(base)
    model = trained(tiny, tmp_path, pretrain=base)
    trainer = trainers[0]
    rows = [trainer.train_dataset[7], trainer.train_dataset[12]]
    with torch.no_grad():
        own = trainer.model(**trainer.data_collator(rows)).logits.flatten().tolist()
    assert rewards(model, "7+1=8", "12+1=13", "7+1==", "12+1==") == pytest.approx(own, abs=1e-5)


def test_a_margin_is_asked_for(tiny: Tiny, tmp_path: Path, trainers: list[Any]) -> None:
    for margin in (None, True):
        trained(tiny, tmp_path, max_steps=1, margin_loss=margin)
    plain, margin = (trainer.state.log_history[0] for trainer in trainers)
    lead = torch.tensor(plain["margin"])
    assert margin["loss"] > plain["loss"]
    assert margin["loss"] == pytest.approx(
        -torch.nn.functional.logsigmoid(lead - 0.5).item(), abs=1e-3
    )


def test_the_head_is_trained_beside_adapters(tiny: Tiny, tmp_path: Path) -> None:
    lora: dict[str, Any] = {"lora_rank": 2, "target_modules": ("q_proj",)}
    one = load_file(trained(tiny, tmp_path, "one", max_steps=1, **lora) / "model.safetensors")
    more = load_file(trained(tiny, tmp_path, "more", max_steps=8, **lora) / "model.safetensors")
    changed = {name for name in one if not one[name].equal(more[name])}
    assert "score.weight" in changed
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} == {"score", "q_proj"}


def test_whole_texts_need_no_prompt(tiny: Tiny, tmp_path: Path, trainers: list[Any]) -> None:
    trained(tiny, tmp_path, prompt_key=None, max_steps=1)
    row = trainers[0].train_dataset[3]
    assert trainers[0].processing_class.decode(row["chosen_ids"]).startswith("4")


@pytest.mark.parametrize("by_name", [False, True])
def test_a_model_of_two_outputs_is_refused_as_a_directory_and_by_name(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by_name: bool,
) -> None:
    model = write_reward_model(tmp_path / "model", "0123456789+=", num_labels=2)
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    given = {
        "pretrain": "owner/model" if by_name else model,
        "dataset": tmp_path / "pairs.jsonl",
        "save_path": tmp_path / "rm",
    }
    with Hub({"owner/model": model}) as served:
        ask(monkeypatch, served.url, tmp_path / "home")
        assert main(["rm", *to_argv(given)]) == ExitCode.USAGE
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("--pretrain: gives 2 numbers for a text; a reward is one")
