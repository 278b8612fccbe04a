"""The sum of all ranks' gradients, begun while the last backward pass of an update still runs.

As torch's DistributedDataParallel does it (Li et al. 2020, section 3.2.3), which would have to know
of the last pass before it goes forward, and wants every part of a model to be in every pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, distributed, nn

BYTES = 25 * 2**20
"""DistributedDataParallel's own default."""


class Buckets:
    """A model's gradients, as many together as fill a message."""

    def __init__(self, model: nn.Module, updated: nn.Module, size: int = BYTES) -> None:
        """`model` goes backward; `updated`, the same or its masters, is given the gradients.

        `size`: bytes of a message, at the most, if no single gradient is larger.
        """
        self._buckets = cut(reversed(_trained(updated)), size)  # as backward passes find them
        self._missing: list[int] = []
        """Gradients of each bucket that are still to come; empty in other passes than the last."""
        self._sent: list[distributed.Work] = []
        numbers = [number for number, bucket in enumerate(self._buckets) for _ in bucket]
        for number, parameter in zip(numbers, reversed(_trained(model)), strict=True):
            hook = partial(self._came, number)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def expect(self) -> None:
        """The next backward pass is the last."""
        self._missing = [len(bucket) for bucket in self._buckets]

    def _came(self, bucket: int, _: nn.Parameter) -> None:
        if self._missing:
            self._missing[bucket] -= 1
            while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
                self._send()

    def _send(self) -> None:
        """The next bucket: every rank sends them in one order."""
        bucket = self._buckets[len(self._sent)]
        flat = torch.cat([_flat(parameter) for parameter in bucket])
        start = 0
        for parameter in bucket:
            end = start + parameter.numel()
            parameter.grad = flat[start:end].view_as(parameter)
            start = end
        self._sent.append(distributed.all_reduce(flat, async_op=True))

    def finish(self) -> None:
        """Wait until every gradient is the sum."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for pending in self._sent:
            pending.wait()
        self._missing, self._sent = [], []


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def cut(parameters: Iterable[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """In their order, those of one type in messages of `size` bytes at the most."""
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
    """Zeros for a part of the model that this rank's samples left out."""
    if parameter.grad is None:
        return torch.zeros_like(parameter).flatten()
    return parameter.grad.flatten()
