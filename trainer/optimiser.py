"""AdamW and its learning rate over the run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.optimization import get_scheduler

from trainer.actors.base import Schedule
from trainer.types import TrainingError


class Optimiser:
    """AdamW over a model's parameters; each `step` is one update with the clipped gradients."""

    def __init__(self, model: nn.Module, schedule: Schedule) -> None:
        self._model = model
        self._max_norm = schedule.max_norm
        self._adam = torch.optim.AdamW(
            _parameter_groups(model, schedule.l2),
            lr=schedule.learning_rate,
            betas=schedule.adam_betas,
            eps=schedule.adam_eps,
        )
        name = schedule.lr_scheduler
        self._scheduler = get_scheduler(
            name,
            self._adam,
            num_warmup_steps=int(schedule.lr_warmup_ratio * schedule.updates),
            num_training_steps=schedule.updates,
            scheduler_specific_kwargs={"min_lr_rate": schedule.min_lr_ratio}
            if name.endswith("min_lr")
            else None,
        )

    @property
    def learning_rate(self) -> float:
        return float(self._scheduler.get_last_lr()[0])

    def step(self) -> float:
        """Update the model and forget the gradients. Returns their norm before clipping.

        Raises TrainingError, with the model untouched, where the norm is not finite.
        """
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm)
        if not torch.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm.item()}: no update was made")
        self._adam.step()
        self._scheduler.step()
        self._adam.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        return {"adam": self._adam.state_dict(), "scheduler": self._scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        self._scheduler.load_state_dict(state["scheduler"])


def _parameter_groups(model: nn.Module, l2: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only: biases and the scales of norms are vectors."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": l2},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
