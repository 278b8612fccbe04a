"""Losses and accuracies of the supervised stages by hand: in float64, row by row, without TRL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from tests.support.tiny_run import to_argv
from trainer.supervised.__main__ import main

Row = dict[str, str]
NAMES = ("train/loss", "train/acc", "train/grad_norm", "eval/loss", "eval/accuracy")
BETA, NLL = 0.3, 0.7
SUMS: list[Row] = [
    {"prompt": "1+1=", "completion": "2"},
    {"prompt": "12+30=", "completion": "4200001"},
    {"prompt": "5+5=", "completion": "10"},
    {"prompt": "9+9=", "completion": "18+0+0+0+0+0"},
    {"prompt": "7=", "completion": "7"},
]
"""No two answers of equal length, and a number that neither 2 nor 3 divides."""
PAIRS: list[Row] = [
    {"prompt": row["prompt"], "chosen": row["completion"], "rejected": worse}
    for row, worse in zip(SUMS, ("3333", "=", "+10", "1", "77777777"), strict=True)
]
STAGES: dict[str, tuple[list[Row], dict[str, Any]]] = {
    "sft": (SUMS, {}),
    "rm": (PAIRS, {"prompt_key": "prompt"}),
    "dpo": (PAIRS, {"prompt_key": "prompt", "beta": BETA, "nll_loss_coef": NLL}),
}
"""Stage → its rows and what its flags are beside those of all."""


def write_models(tiny: Path, out: Path) -> None:
    """Models whose outputs differ from token to token: `model` and `reference`."""
    for seed, name in enumerate(("model", "reference")):
        made = AutoModelForCausalLM.from_pretrained(tiny)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        made.save_pretrained(out / name)
        AutoTokenizer.from_pretrained(tiny).save_pretrained(out / name)
    scorer = AutoModelForSequenceClassification.from_pretrained(out / "model", num_labels=1)
    with torch.no_grad():
        scorer.score.weight.copy_(torch.randn_like(scorer.score.weight))
    scorer.save_pretrained(out / "scorer")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(out / "scorer")


def flags_of(stage: str, root: Path, out: Path, **more: Any) -> dict[str, Any]:
    """The flags of one step an epoch, of all rows, with an evaluation of them after each."""
    rows, own = STAGES[stage]
    data = root / f"{stage}.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    reference = {"ref_pretrain": root / "reference"} if stage == "dpo" else {}
    return {
        "pretrain": root / ("scorer" if stage == "rm" else "model"),
        "dataset": data,
        "eval_dataset": data,
        "run_dir": out,
        "train_batch_size": 6,
        "max_epochs": 2,
        "learning_rate": 0.02,
        "lr_scheduler": "constant",
        "lr_warmup_ratio": 0,
        "max_norm": 0.5,
        "logging_steps": 1,
        "save_steps": -1,
        **own,
        **reference,
        **more,
    }


def trained(stage: str, root: Path, out: Path, **flags: Any) -> None:
    """Run a stage in this process."""
    assert main([stage, *to_argv(flags_of(stage, root, out, **flags))]) == ExitCode.FINISHED


def rows_of(out: Path) -> list[dict[str, float]]:
    """The numbers of each row that a stage has written, without times and paces."""
    lines = map(json.loads, RunFiles(out).metrics.read_text().splitlines())
    return [{name: line[name] for name in NAMES if name in line} for line in lines]


def by_hand(stage: str, root: Path, model: Path | None = None) -> dict[str, float]:
    """Loss and accuracy of all rows. `model`: None: the one that the stage begins with."""
    rows, _ = STAGES[stage]
    if stage == "rm":
        return _of_scores(model or root / "scorer", rows)
    if stage == "sft":
        return _of_tokens(model or root / "model", rows)
    return _of_preferences(model or root / "model", root / "reference", rows)


def _of_tokens(model: Path, rows: Sequence[Row]) -> dict[str, float]:
    read = [_answer(model, row["prompt"], row["completion"]) for row in rows]
    log_probs, best = (torch.cat(values) for values in zip(*read, strict=True))
    return {"loss": -log_probs.mean().item(), "accuracy": best.double().mean().item()}


def _of_scores(model: Path, rows: Sequence[Row]) -> dict[str, float]:
    scorer = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(model)

    def score(text: str) -> Tensor:
        ids = tokenizer(text + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            scored: Tensor = scorer(input_ids=ids).logits[0, 0]
        return scored

    def lead(row: Row) -> Tensor:
        return score(row["prompt"] + row["chosen"]) - score(row["prompt"] + row["rejected"])

    return _of_leads(torch.stack([lead(row) for row in rows]))


def _of_preferences(model: Path, reference: Path, rows: Sequence[Row]) -> dict[str, float]:
    def better(source: Path, row: Row) -> Tensor:
        return _answer(source, row["prompt"], row["chosen"])[0]

    def lead(source: Path, row: Row) -> Tensor:
        return better(source, row).sum() - _answer(source, row["prompt"], row["rejected"])[0].sum()

    leads = torch.stack([lead(model, row) - lead(reference, row) for row in rows])
    found = _of_leads(BETA * leads)
    said = torch.cat([better(model, row) for row in rows])
    return {**found, "loss": found["loss"] - NLL * said.mean().item()}


def _of_leads(leads: Tensor) -> dict[str, float]:
    accuracy = (leads > 0).double().mean().item()
    return {"loss": -logsigmoid(leads).mean().item(), "accuracy": accuracy}


def _answer(model: Path, prompt: str, answer: str) -> tuple[Tensor, Tensor]:
    """The log-probability of each token of an answer, and whether it is the likeliest."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(model)
    start = len(tokenizer(prompt)["input_ids"])
    ids = tokenizer(prompt + answer + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        table = policy(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)
    wanted = ids[0, start:]
    return table.gather(1, wanted[:, None])[:, 0], table.argmax(-1) == wanted
