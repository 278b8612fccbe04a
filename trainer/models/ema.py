"""A moving average of a model's weights over its updates."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage:
    """θ̄ ← β θ̄ + (1 − β) θ after each update, beginning with the weights before training.

    It keeps the precision of the first weights, whatever the model is trained in.
    """

    def __init__(self, model: nn.Module, beta: float) -> None:
        self._averaged = copy.deepcopy(model).requires_grad_(False)
        self._toward = get_ema_multi_avg_fn(beta)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self._averaged.state_dict(keep_vars=True)

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """`parameters`: the model's parameters, in its order, consumed one by one."""
        for averaged, newest in zip(self._averaged.parameters(), parameters, strict=True):
            self._toward([averaged], [newest.detach().to(averaged)], 1)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self._averaged.load_state_dict(tensors)

    @torch.no_grad()
    def begin(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Begin with these weights, consumed one by one. Others are frozen and stay."""
        own = self.tensors
        for name, tensor in named:
            own[name].copy_(tensor)
