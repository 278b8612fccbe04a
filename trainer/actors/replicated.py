"""Every rank holds the whole model; gradients are added up before an update.

In bf16 the weights that are updated are not those that the model computes with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.actors.base import LearnerSettings, Rank
from trainer.actors.buckets import Buckets
from trainer.actors.lora import trained
from trainer.actors.precision import Masters
from trainer.checkpoint import state
from trainer.checkpoint.snapshot import Keep
from trainer.checkpoint.state import State
from trainer.optimiser import Optimiser


class Replicated:
    """A Strategy. On one rank there is nothing to it."""

    def __init__(
        self, module: nn.Module, model: nn.Module, settings: LearnerSettings, rank: Rank
    ) -> None:
        self._module = module
        self._model = model
        self._rank = rank
        self._masters = Masters(model) if settings.model.mixed_precision else None
        self._updated = self._masters.model if self._masters else model
        """Has the weights in fp32, with their gradients."""
        self._optimiser = Optimiser(self._updated, settings.schedule)
        # Each rank's loss is its share of one sum, so their gradients are added, not averaged.
        self._buckets = Buckets(model, self._updated) if rank.world > 1 else None
        self._device = next(model.parameters()).device
        self._sleeps = settings.sharding.sleep and self._device.type == "cuda"

    def run(self, *inputs: Any, **options: Any) -> Any:
        return self._module(*inputs, **options)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        if last and self._buckets:
            self._buckets.expect()
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        if self._buckets:
            self._buckets.finish()
        norm = self._optimiser.step()
        if self._masters:
            self._masters.publish()
        return norm

    @property
    def learning_rate(self) -> float:
        return self._optimiser.learning_rate

    def whole(self) -> dict[str, Tensor]:
        return self._model.state_dict(keep_vars=True)

    def updated(self) -> Iterator[Tensor]:
        return self._updated.parameters()

    def state(self, keep: Keep) -> State:
        tensors = trained(self._updated)
        mine = state.share(tensors, self._rank)
        copies: dict[int, Tensor] = {}  # a tied tensor is copied once
        for name in mine:
            if id(tensors[name]) not in copies:
                copies[id(tensors[name])] = keep(tensors[name])
        adam = self._optimiser.moments(self._updated)
        return State(
            model={name: copies[id(tensors[name])] for name in mine},
            adam={
                name: {key: keep(moment) for key, moment in adam[name].items()}
                for name in mine
                if name in adam
            },
            scheduler=self._optimiser.schedule,
        )

    def restore(self, state: State) -> None:
        state.check_fits(trained(self._updated))
        self._updated.load_state_dict(state.model, strict=False)
        if self._masters:
            self._masters.publish()
        self._optimiser.restore(self._updated, state.adam, state.scheduler)

    def sleep(self) -> None:
        if self._sleeps:
            self._move(torch.device("cpu"))
            torch.cuda.empty_cache()

    def wake(self) -> None:
        if self._sleeps:
            self._move(self._device)

    def _move(self, device: torch.device) -> None:
        self._model.to(device)
        self._updated.to(device)
        self._optimiser.to(device)
