"""Data parallel training: every rank holds the whole model, and gradients are summed over ranks.

In bf16 the optimizer updates fp32 master weights, not the weights that the model computes with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from trainer.checkpoint import state
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import whole_of
from trainer.models.gpu_memory import HostCopies, Move, move_modules, up_to
from trainer.models.lora import trained
from trainer.models.precision import Masters
from trainer.types import Rank
from trainer.workers.optimizer import Optimizer
from trainer.workers.settings import LearnerSettings
from trainer.workers.weight_check import Held


class Replicated:
    """A Strategy. On one rank it sends nothing."""

    def __init__(
        self, module: nn.Module, model: nn.Module, settings: LearnerSettings, rank: Rank
    ) -> None:
        self._module = module
        self._model = model
        self._rank = rank
        self._masters = Masters(model) if settings.model.mixed_precision else None
        self._updated = self._masters.model if self._masters else model
        """Has the weights that the optimizer updates, in fp32, with their gradients."""
        self._optimizer = Optimizer(self._updated, settings.optimizer, settings.updates)
        # The losses of the ranks are parts of one sum, so gradients are summed, not averaged.
        self._buckets = Buckets(model, self._updated) if rank.world > 1 else None
        self._device = next(model.parameters()).device
        self._sleeps = settings.sharding.sleep and self._device.type == "cuda"
        self._asleep = False
        self._host = HostCopies()

    def run(self, *inputs: Any, **options: Any) -> Any:
        return self._module(*inputs, **options)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        if last and self._buckets:
            self._buckets.expect()
        loss.backward()

    def step(self, look: Callable[[float], None]) -> float:
        if self._buckets:
            self._buckets.finish()
        norm = self._optimizer.step(look)
        if self._masters:
            self._masters.publish()
        return norm

    @property
    def learning_rate(self) -> float:
        return self._optimizer.learning_rate

    def whole(self) -> dict[str, Tensor]:
        return self._model.state_dict(keep_vars=True)

    def updated(self) -> Iterator[Tensor]:
        return self._updated.parameters()

    def state(self) -> State:
        tensors = trained(self._updated)
        mine = state.share(tensors, self._rank)
        adam = self._optimizer.moments(self._updated)
        return State(
            model={name: tensors[name] for name in mine},
            adam={name: adam[name] for name in mine if name in adam},
            scheduler=self._optimizer.schedule,
        )

    def held(self) -> Held:
        masters = self._updated.parameters() if self._masters else ()
        moments = self._optimizer.moments(self._updated).values()
        return Held([*self._model.parameters(), *masters, *state.moments_of(moments)])

    @torch.no_grad()
    def restore(self, state: State) -> None:
        tensors = trained(self._updated)
        state.check_fits(tensors)
        for name, tensor in tensors.items():
            tensor.copy_(whole_of(state.model[name]))
        if self._masters:
            self._masters.publish()
        self._optimizer.restore(self._updated, state.adam, state.scheduler)

    def sleep(self) -> None:
        if self._asleep or not self._sleeps:
            return
        self._asleep = True
        self._move(self._host.down)
        torch.cuda.empty_cache()

    def wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._move(up_to(self._device))

    def _move(self, move: Move) -> None:
        move_modules({"model": self._model, "masters": self._updated}, move)
        self._optimizer.move(move)


BYTES = 25 * 2**20
"""Default of DistributedDataParallel."""


class Buckets:
    """Sums a model's gradients over ranks, in messages of several gradients."""

    def __init__(self, model: nn.Module, updated: nn.Module, size: int = BYTES) -> None:
        """`updated` gets the gradients of `model`: it is the same model, or its masters.

        `size`: limit of a message in bytes, unless one gradient is larger.
        """
        self._buckets = cut(reversed(_trained(updated)), size)  # in the order of a backward pass
        self._missing: list[int] = []
        """Number of missing gradients of each bucket; empty in all passes but the last."""
        self._sent: list[distributed.Work] = []
        numbers = [number for number, bucket in enumerate(self._buckets) for _ in bucket]
        for number, parameter in zip(numbers, reversed(_trained(model)), strict=True):
            hook = partial(self._on_gradient, number)
            parameter.register_post_accumulate_grad_hook(hook)

    def expect(self) -> None:
        """Prepare for the last backward pass of the update."""
        self._missing = [len(bucket) for bucket in self._buckets]

    def _on_gradient(self, bucket: int, _: nn.Parameter) -> None:
        if self._missing:
            self._missing[bucket] -= 1
            while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
                self._send()

    def _send(self) -> None:
        """Send the next bucket. Every rank sends the buckets in the same order."""
        bucket = self._buckets[len(self._sent)]
        flat = torch.cat([_flat(parameter) for parameter in bucket])
        start = 0
        for parameter in bucket:
            end = start + parameter.numel()
            parameter.grad = flat[start:end].view_as(parameter)
            start = end
        self._sent.append(distributed.all_reduce(flat, async_op=True))

    def finish(self) -> None:
        """Wait until every gradient is the sum over ranks."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for pending in self._sent:
            pending.wait()
        self._missing, self._sent = [], []


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def cut(parameters: Iterable[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Return the parameters in order, in buckets of one type and at most `size` bytes."""
    buckets: list[list[nn.Parameter]] = []
    held = 0
    for parameter in parameters:
        held += parameter.nbytes
        if not buckets or held > size or parameter.dtype != buckets[-1][0].dtype:
            buckets.append([])
            held = parameter.nbytes
        buckets[-1].append(parameter)
    return buckets


def _flat(parameter: nn.Parameter) -> Tensor:
    """Return the gradient; zeros if this rank's samples did not use the parameter."""
    if parameter.grad is None:
        return torch.zeros_like(parameter).flatten()
    return parameter.grad.flatten()
