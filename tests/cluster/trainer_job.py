"""A script of transformers' Trainer that knows nothing of Rollcall: a line through points.

Rank 0 is killed after step 7 of the first attempt.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

POINTS = [{"x": torch.tensor([n / 64]), "labels": torch.tensor([n / 32])} for n in range(64)]


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


class Killed(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        first = os.environ["ROLLCALL_ATTEMPT"] == "1"
        if first and state.global_step == 7 and state.is_world_process_zero:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    trainer = Trainer(Line(), arguments, train_dataset=POINTS, callbacks=[Killed()])
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    trainer.save_model()
    torch.distributed.destroy_process_group()  # without it, gloo often aborts at the exit


if __name__ == "__main__":
    main()
