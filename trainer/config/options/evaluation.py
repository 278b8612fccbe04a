"""Flags: evaluation on held-out prompts."""

# ruff: noqa: RUF009 - `Group.flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.data_sets import TRAIN, DataSets
from trainer.config.schema import Group


@dataclass(frozen=True, kw_only=True)
class EvaluationFlags:
    eval_dataset: DataSets | None = Group.EVALUATION.flag(
        None, "held-out prompts, as --prompt_data names them", dotted="eval.dataset"
    )
    eval_split: str = Group.EVALUATION.flag(
        TRAIN, "split of held-out data sets that have several", dotted="eval.split"
    )
    eval_steps: int = Group.EVALUATION.flag(
        -1,
        "steps between evaluations; the first and last state are always evaluated",
        dotted="eval.steps",
        unit="steps",
        at_least=-1,
    )
    eval_n_samples_per_prompt: int = Group.EVALUATION.flag(
        1,
        "completions of a held-out prompt: the k of pass@k",
        dotted="eval.n_samples_per_prompt",
        at_least=1,
    )
    eval_temperature: float = Group.EVALUATION.flag(
        0.0,
        "sampling temperature on held-out prompts; 0: greedy decoding",
        dotted="eval.temperature",
        at_least=0,
    )
    best_metric_key: str = Group.EVALUATION.flag(
        "",
        "metric of the best checkpoint, which is kept; default: pass@1; none: keep none",
        dotted="ckpt.best_metric_key",
    )
