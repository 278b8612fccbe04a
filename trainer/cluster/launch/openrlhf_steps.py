"""Makes OpenRLHF's trainers of train_sft, train_rm and train_dpo tell their steps.

Their progress bars count micro-batches of an epoch, and begin anew after a resume.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from contract.launch.log_lines import step_line

TRAINERS = {
    "openrlhf.cli.train_sft": ("openrlhf.trainer.sft_trainer", "SFTTrainer"),
    "openrlhf.cli.train_rm": ("openrlhf.trainer.rm_trainer", "RewardModelTrainer"),
    "openrlhf.cli.train_dpo": ("openrlhf.trainer.dpo_trainer", "DPOTrainer"),
}
Logging = Callable[..., Any]


def tell_steps(program: str) -> None:
    """Let rank 0 print a line after each step of this program; any other one stays as it is."""
    if program not in TRAINERS:
        return
    module, name = TRAINERS[program]
    trainer = getattr(import_module(module), name)
    trainer.save_logs_and_checkpoints = _telling(trainer.save_logs_and_checkpoints)


def _telling(save_logs_and_checkpoints: Logging) -> Logging:
    @functools.wraps(save_logs_and_checkpoints)
    def telling(self: Any, args: Any, global_step: int, *rest: Any, **named: Any) -> Any:
        result = save_logs_and_checkpoints(self, args, global_step, *rest, **named)
        if self.strategy.is_rank_0():
            print(step_line(global_step), flush=True)
        return result

    return telling
