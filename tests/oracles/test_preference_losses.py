"""The losses of the stages `rm` and `dpo` against OpenRLHF's, on the same models and rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.oracles.process import Peers
from tests.support.tiny_run import Tiny, to_argv
from trainer.supervised import arguments, data
from trainer.supervised.parse import parse
from trainer.supervised.trainers import TRAINERS, Inputs

ROWS = 12


def rows(seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)

    def text(most: int) -> str:
        return "".join(draw.choices("0123456789+=", k=draw.randint(1, most)))

    return [
        {"prompt": text(6), "chosen": text(9), "rejected": text(9), "margin": draw.uniform(-1, 1)}
        for _ in range(ROWS)
    ]


def built(stage: str, tiny: Tiny, directory: Path, **flags: Any) -> Any:
    """The stage's trainer, as its flags make it."""
    (directory / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows(seed=7))))
    given = {
        "pretrain": tiny.model,
        "dataset": directory / "pairs.jsonl",
        "prompt_key": "prompt",
        "save_path": directory / "out",
        "train_batch_size": ROWS,
        **flags,
    }
    made = parse(stage, to_argv(given)).flags
    make_arguments, build = TRAINERS[stage]
    common = arguments.of_trainer(made, ROWS, 1, cpu=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    read = data.load(made, made.dataset, directory)
    return build(made, Inputs(make_arguments(made, common), tokenizer, read, None))


def batch_of(trainer: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = trainer.data_collator([*trainer.train_dataset])
    return found


def other_model(tiny: Tiny, out: Path) -> Path:
    """A model like the tiny one, with other weights."""
    model = AutoModelForCausalLM.from_pretrained(tiny.model)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(tiny.model).save_pretrained(out)
    return out


@torch.no_grad()
def answers_log_probs(model: Path, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The summed log-probabilities of the better and of the worse answers."""
    logits = AutoModelForCausalLM.from_pretrained(model)(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).logits
    tokens = batch["input_ids"][:, 1:, None]
    log_probs = logits[:, :-1].log_softmax(-1).gather(2, tokens).squeeze(2)
    sums = (log_probs * batch["completion_mask"][:, 1:]).sum(1)
    better, worse = sums.chunk(2)
    return better, worse


@pytest.mark.parametrize("beta", [0.05, 0.7])
def test_the_loss_of_dpo_equals_openrlhf_s(
    peers: Peers, tiny: Tiny, tmp_path: Path, beta: float
) -> None:
    reference = other_model(tiny, tmp_path / "reference")
    trainer = built("dpo", tiny, tmp_path, ref_pretrain=reference, beta=beta)
    batch = batch_of(trainer)
    chosen, rejected = answers_log_probs(tiny.model, batch)
    ref_chosen, ref_rejected = answers_log_probs(reference, batch)
    assert (chosen - ref_chosen).abs().max() > 0.5, "the models are to differ"
    theirs = peers.openrlhf(
        "dpo_loss",
        arrays={
            "policy_chosen_logps": chosen.numpy(),
            "policy_rejected_logps": rejected.numpy(),
            "reference_chosen_logps": ref_chosen.numpy(),
            "reference_rejected_logps": ref_rejected.numpy(),
        },
        settings={"beta": beta},
    )
    ours = trainer.compute_loss(trainer.model, batch).item()
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "margin"), [("sigmoid", False), ("logexp", False), ("sigmoid", True)]
)
def test_the_loss_of_a_reward_model_equals_openrlhf_s(
    peers: Peers, tiny: Tiny, tmp_path: Path, loss: str, margin: bool
) -> None:
    trainer = built("rm", tiny, tmp_path, loss=loss, margin_loss=margin or None)
    with torch.no_grad():
        trainer.model.score.weight.mul_(40)  # rewards that differ
    trainer.model.save_pretrained(tmp_path / "rm")
    batch = batch_of(trainer)
    with torch.no_grad():
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
        logits = model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits
    chosen, rejected = logits.squeeze(1).chunk(2)
    assert (chosen - rejected).abs().max() > 0.5
    arrays = {"chosen": chosen.numpy(), "rejected": rejected.numpy()}
    if margin:
        arrays["margin"] = batch["margin"].numpy()
    theirs = peers.openrlhf("pair_loss", arrays=arrays, settings={"loss": loss})
    ours = trainer.compute_loss(trainer.model, batch).item()
    assert ours == pytest.approx(theirs, rel=1e-5)
