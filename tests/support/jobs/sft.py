"""TRL's own script of SFT, whose steps, losses and checkpoints are recorded.

`sft.py FLAGS`: those of `trl sft`.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from typing import Any

from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    trainer,
)

from tests.support.jobs import record


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            record.write("begin", state.global_step)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        record.pause()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if state.is_world_process_zero and "loss" in (logs or {}):
            record.write("step", state.global_step, value=float((logs or {})["loss"]))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            record.write("saved", state.global_step)


if __name__ == "__main__":
    trainer.DEFAULT_CALLBACKS.insert(0, Recorder)  # before one that ends the process
    runpy.run_module("trl.scripts.sft", run_name="__main__", alter_sys=True)
