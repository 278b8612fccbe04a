"""A stage's rows in RUN/metrics.jsonl, under the names of the builtin trainer's rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from contract import lease
from contract.files import stored_json
from contract.metrics import names as metric_names
from contract.metrics.json_lines import JsonLines
from trainer.metrics.sinks import MetricRow

TOKENS = "num_tokens"
"""Tokens of this attempt so far, in the Trainer's log."""
LOGGED = (
    *("loss", "learning_rate", "grad_norm", "entropy", "mean_token_accuracy", "accuracy"),
    *("rewards/accuracies", "mean_reward", "margin", "rewards/margins", "eval_loss"),
    *("eval_mean_token_accuracy", "eval_accuracy", "eval_rewards/accuracies"),
)
"""Names in the Trainer's log of what is in a row."""


def renamed(logs: Mapping[str, Any]) -> MetricRow:
    """Return the finite numbers of the Trainer's log that have a name in a row."""
    known = {name: float(logs[name]) for name in LOGGED if stored_json.is_number(logs.get(name))}
    return metric_names.row_of(known)


class MetricRows(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Rank 0 writes a row for each line of the Trainer's log, and one for the last step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: JsonLines | None = None
        self._step, self._tokens, self._at = 0, 0.0, 0.0
        """Of the last row of training, or of the beginning."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            lease.check(lease.mine())
            self._lines = JsonLines(self._path, state.global_step)
        self._step, self._tokens, self._at = state.global_step, 0.0, time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        row = renamed(logs or {})
        if self._lines is None or not row:
            return
        if "train/loss" in row:
            row = {**row, **self._pace(state.global_step, (logs or {}).get(TOKENS, 0.0))}
        lease.check(lease.mine())
        self._lines.log(state.global_step, row)

    def _pace(self, step: int, tokens: float) -> MetricRow:
        """Return the time of a step and the throughput since the last row of training."""
        now = time.perf_counter()
        seconds, made, steps = now - self._at, tokens - self._tokens, step - self._step
        self._step, self._tokens, self._at = step, tokens, now
        if steps < 1 or seconds <= 0:
            return {}
        pace = {"timing/step": seconds / steps}
        return pace | ({"perf/tokens_per_second": made / seconds} if made > 0 else {})
