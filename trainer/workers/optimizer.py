"""AdamW, and its learning rate over the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.optimization import get_scheduler

from trainer.checkpoint.state import MOMENTS
from trainer.checkpoint.tensor_parts import whole_of
from trainer.config.options.optimizer import OptimizerSettings
from trainer.models.gpu_memory import Move
from trainer.models.zero3 import shape_of
from trainer.types import TrainingError


class Optimizer:
    """AdamW over a model's parameters; each `step` is one update with the clipped gradients."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings, updates: int) -> None:
        """`updates`: optimizer steps of the whole run."""
        self._model = model
        self._max_norm = settings.max_norm
        # On a GPU torch's own choice needs 4 bytes more of each parameter during a step.
        on_gpu = all(parameter.is_cuda for parameter in model.parameters())
        self._adam = adamw(model, settings, fused=on_gpu or None)
        self._scheduler = scheduler_of(self._adam, settings, updates)

    @property
    def learning_rate(self) -> float:
        return float(self._scheduler.get_last_lr()[0])

    def step(self, look: Callable[[float], None] = lambda norm: None) -> float:
        """Update the model and forget the gradients. Returns their norm before clipping.

        `look` gets the norm before the update. Raises TrainingError, with the model unchanged, if
        the norm is not finite, and what `look` raises.
        """
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm)
        look(float(norm))
        if not torch.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm.item()}: no update was made")
        self._adam.step()
        self._scheduler.step()
        self._adam.zero_grad(set_to_none=True)
        return float(norm)

    @property
    def schedule(self) -> dict[str, Any]:
        """The state of the learning rate's schedule."""
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def moments(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """Return Adam's state of each parameter of `model`, by name."""
        state = self._adam.state
        return {name: dict(state[p]) for name, p in model.named_parameters() if p in state}

    def move(self, move: Move) -> None:
        """Move Adam's moments."""
        for place, held in enumerate(self._adam.state.values()):
            for key in MOMENTS:
                held[key] = move((key, place), held[key])

    def restore(
        self, model: nn.Module, moments: Mapping[str, Mapping[str, Any]], schedule: dict[str, Any]
    ) -> None:
        """Continue from these moments and this schedule."""
        names = {parameter: name for name, parameter in model.named_parameters()}
        content = self._adam.state_dict()
        in_order = [p for group in self._adam.param_groups for p in group["params"]]
        content["state"] = {
            # Copy: the source may be a file or another process's memory.
            index: {
                key: whole_of(value).clone() for key, value in moments[names[parameter]].items()
            }
            for index, parameter in enumerate(in_order)
            if names[parameter] in moments
        }
        self._adam.load_state_dict(content)
        restore_schedule(self._scheduler, self._adam, schedule)


def adamw(
    model: nn.Module, settings: OptimizerSettings, *, fused: bool | None = None
) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, not on biases and scales of norms."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if len(shape_of(p)) > 1], "weight_decay": settings.l2},
        {"params": [p for p in parameters if len(shape_of(p)) <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        eps=settings.adam_eps,
        fused=fused,
    )


def scheduler_of(adam: torch.optim.AdamW, settings: OptimizerSettings, updates: int) -> Any:
    name = settings.lr_scheduler
    return get_scheduler(
        name,
        adam,
        num_warmup_steps=math.ceil(updates * settings.lr_warmup_ratio),  # as OpenRLHF
        num_training_steps=updates,
        scheduler_specific_kwargs=(
            {"min_lr_rate": settings.min_lr_ratio} if name.endswith("min_lr") else None
        ),
    )


def restore_schedule(scheduler: Any, adam: torch.optim.AdamW, state: dict[str, Any]) -> None:
    """Continue at the update of `state`, which may come from another trainer.

    Peak and shape of the schedule stay those of `scheduler`, which the flags determine.
    """
    scheduler.last_epoch = made = state["last_epoch"]
    scheduler._step_count = made + 1  # torch counts the construction, too
    shapes = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    scheduler._last_lr = [base * shape(made) for base, shape in shapes]
    for group, rate in zip(adam.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
