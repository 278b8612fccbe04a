"""Flags: evaluation on held-out prompts."""

# ruff: noqa: RUF009 - `flag` makes a dataclass field
from __future__ import annotations

from dataclasses import dataclass

from trainer.config.data_sets import TRAIN, DataSets
from trainer.config.schema import EVALUATION, flag


@dataclass(frozen=True, kw_only=True)
class EvaluationFlags:
    eval_dataset: DataSets | None = flag(
        None,
        group=EVALUATION,
        dotted="eval.dataset",
        help="held-out prompts, as --prompt_data names them",
    )
    eval_split: str = flag(
        TRAIN,
        group=EVALUATION,
        dotted="eval.split",
        help="split of held-out data sets that have several",
    )
    eval_steps: int = flag(
        -1,
        group=EVALUATION,
        dotted="eval.steps",
        unit="steps",
        at_least=-1,
        help="steps between evaluations; the first and last state are always evaluated",
    )
    eval_n_samples_per_prompt: int = flag(
        1,
        group=EVALUATION,
        dotted="eval.n_samples_per_prompt",
        at_least=1,
        help="completions of a held-out prompt: the k of pass@k",
    )
    eval_temperature: float = flag(
        0.0,
        group=EVALUATION,
        dotted="eval.temperature",
        at_least=0,
        help="sampling temperature on held-out prompts; 0: greedy decoding",
    )
    best_metric_key: str = flag(
        "",
        group=EVALUATION,
        dotted="ckpt.best_metric_key",
        help="metric of the best checkpoint, which is kept; default: pass@1; none: keep none",
    )
