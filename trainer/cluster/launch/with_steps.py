"""Runs a script of transformers' Trainer, which TRL's trainers are, so that it tells its steps.

`python -m trainer.cluster.launch.with_steps [-m] SCRIPT …`. Rank 0 prints a line for each
training step, and signs of life in evaluations and before and after checkpoints.
On SIGTERM all ranks save a checkpoint at the end of the same step, and exit with 143.
Its Trainer goes on from the checkpoint of ROLLCALL_RESUME_CHECKPOINT, whatever the script gives.
OpenRLHF's modules tell their steps, too; they do not save on SIGTERM.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    trainer,
)

from contract.exit_codes import ExitCode
from contract.files.child_variables import RESUME_CHECKPOINT
from contract.launch.log_lines import FINISHED, Part, part_line, step_line
from contract.run_dir import RunFiles
from trainer.cluster.launch import openrlhf_steps

MEASURES = {
    "loss": "loss",
    "reward": "reward",
    "kl": "kl",
    "eval_accuracy": "eval",
    "eval_rewards/accuracies": "eval",
    "eval_mean_token_accuracy": "eval",
}
"""Numbers of the Trainer's log → their names in a step's line.

The accuracies are those of TRL's reward models, of DPO, and of SFT.
"""


SIGN_SECONDS = 30.0
"""Shortest pause between two signs of an evaluation."""


class Steps(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    training: ClassVar[bool] = False
    """A training of this process has begun, and has not ended."""

    def __init__(self) -> None:
        self._asked = False
        self._stops = False
        self._measured: dict[str, float] = {}
        self._batches = 0
        """Of evaluations, so far."""
        self._shown_at = float("-inf")
        """When the newest sign of an evaluation was printed; seconds of the monotonic clock."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        Steps.training = True
        if state.is_world_process_zero:
            show_output(Path(args.output_dir).absolute())
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the script's own
            signal.signal(signal.SIGTERM, self._ask)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        is_held_out = False
        for name, known in MEASURES.items():
            if isinstance(value := (logs or {}).get(name), int | float):
                self._measured[known] = value
                is_held_out = is_held_out or known == "eval"
        if is_held_out:  # no step may come after the last evaluation
            self._tell(state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._tell(state)
        if self._any_rank_is_asked(args):
            self._stops = control.should_save = control.should_training_stop = True
        self._show_save(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._show_save(state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._batches += 1
        if (now := time.monotonic()) - self._shown_at >= SIGN_SECONDS:
            self._shown_at = now
            self._show(state, Part.EVALUATION, self._batches)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._show_save(state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        Steps.training = False
        self._show(state, Part.EXPORT, state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._tell(state)  # the write is over, and the next step may hang
        if self._stops:  # before the script exports or publishes what is half trained
            sys.exit(int(ExitCode.STOPPED))

    def _tell(self, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        print(step_line(state.global_step, state.max_steps, self._measured), flush=True)

    def _show_save(self, state: TrainerState, control: TrainerControl) -> None:
        if control.should_save:
            self._show(state, Part.SAVE, state.global_step)

    def _show(self, state: TrainerState, part: Part, count: int) -> None:
        """Print a sign of life: the part has begun, or goes on. Each has another count."""
        if state.is_world_process_zero:
            print(part_line(part, count), flush=True)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def _any_rank_is_asked(self, args: TrainingArguments) -> bool:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self._asked
        asked = torch.tensor([float(self._asked)], device=args.device)
        torch.distributed.all_reduce(asked)
        return bool(asked.item())


def on_any_cpu(storage: Any, location: str) -> Any:
    """Return the storage for "cpu:0", to which the Trainer loads if several ranks run on CPUs."""
    return storage if location.startswith("cpu:") else None


def show_output(directory: Path) -> None:
    """Make RUN/hf a link to where the Trainer saves, if that is elsewhere: there it is found."""
    root = Path(os.environ.get("ROLLCALL_RUN_DIR", ".")).absolute()
    files = RunFiles(root)
    if directory.resolve() == files.exported.resolve():
        return
    try:
        is_link = files.link_exported(directory)
    except OSError as error:
        print(f"{files.exported} is not a link to {directory}: {error}", file=sys.stderr)
        return
    if is_link and not directory.is_relative_to(root):
        print(
            f"WARNING: checkpoints are in {directory}, outside of the run directory {root}: all "
            "nodes must share it, and it must outlive a container",
            file=sys.stderr,
        )


def resumes(train: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Trainer.train` that goes on from the run's newest checkpoint of its own output.

    A script may leave out `resume_from_checkpoint`: transformers does not look into the
    TrainingArguments for it. Another Trainer of the same script begins at its own first step.
    """
    given = os.environ.get(RESUME_CHECKPOINT)
    left = [Path(given).resolve()] if given else []  # before a Trainer changes the link RUN/hf

    @wraps(train)
    def resumed(of: Any, resume_from_checkpoint: Any = None, *rest: Any, **named: Any) -> Any:
        if left and left[0].parent == Path(of.args.output_dir).resolve():
            resume_from_checkpoint = str(
                left.pop()
            )  # once: a next Trainer may have the same output
        return train(of, resume_from_checkpoint, *rest, **named)

    return resumed


def main() -> None:
    try:
        _run(sys.argv[1:])
    except SystemExit as end:
        if not end.code and not Steps.training:
            _tell_end()
        raise
    _tell_end()


def _tell_end() -> None:
    """Let rank 0 print that the script has run to its end: exit code 0 alone does not say it."""
    if os.environ.get("RANK", "0") == "0":
        print(FINISHED, flush=True)


def _run(words: list[str]) -> None:
    torch.serialization.register_package(0, lambda _: None, on_any_cpu)
    trainer.DEFAULT_CALLBACKS.append(Steps)
    trainer.Trainer.train = resumes(trainer.Trainer.train)
    if words[0] == "-m":
        openrlhf_steps.tell_steps(words[1])
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)  # as `python SCRIPT` has it
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
