"""A moving average of a model's weights over its updates."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class MovingAverage:
    """θ̄ ← β θ̄ + (1 − β) θ after each update, from the weights that the model begins with."""

    def __init__(self, model: nn.Module, beta: float) -> None:
        average = get_ema_multi_avg_fn(beta)  # type: ignore[no-untyped-call]
        self._averaged = AveragedModel(model, multi_avg_fn=average)
        self._averaged.requires_grad_(False)
        self._averaged.n_averaged.fill_(1)  # at zero the first update would be copied whole

    @property
    def model(self) -> Any:
        return self._averaged.module

    def update(self, model: nn.Module) -> None:
        self._averaged.update_parameters(model)

    def state_dict(self) -> dict[str, Any]:
        return self._averaged.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averaged.load_state_dict(state)
