"""Weights of which each rank holds a part (ZeRO-3): what they are as a whole, and how to run them.

And how to try a model in fp32, whatever it is kept in.

Imported where DeepSpeed may be absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.gpu_memory import give_freed_memory_back


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "ds_id")


def shape_of(tensor: Tensor) -> torch.Size:
    """As a whole: a rank's own tensor is empty while it is sharded."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


@contextmanager
def readable(model: nn.Module) -> Iterator[None]:
    """Within, `model` runs before anything is wrapped around it, and in fp32 at least.

    A layer is whole, and in fp32, in its turn alone. On all ranks at once, and without gradients.
    """
    hooks = []
    try:
        for module, parameters in _in_turn(model):
            if any(is_sharded(one) or is_half(one) for one in parameters):
                turn = _Turn(parameters)
                hooks.append(module.register_forward_pre_hook(turn.begin))
                hooks.append(module.register_forward_hook(turn.end, always_call=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _in_turn(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """The layers of the model with all that is in them, and what is around them, one by one.

    Layers as a whole, as some of them read the weights of a module that they do not call.
    """
    if isinstance(module, nn.ModuleList):
        for layer in module:
            yield layer, list(layer.parameters())
        return
    yield module, list(module.parameters(recurse=False))
    for child in module.children():
        yield from _in_turn(child)


class _Turn:
    """While a module computes, its weights are whole on every rank, and in fp32 at least."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._held = ExitStack()

    def begin(self, *_: object) -> None:
        self._held.enter_context(whole(self._parameters))
        self._held.enter_context(_widened(self._parameters))

    def end(self, *_: object) -> None:
        self._held.close()
        give_freed_memory_back()  # else that of several layers would stay


def is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)


@contextmanager
def _widened(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within, those in half precision are in fp32."""
    held = [(one, one.data) for one in parameters if is_half(one)]
    for parameter, data in held:
        parameter.data = data.float()
    try:
        yield
    finally:
        for parameter, data in held:
            parameter.data = data


@contextmanager
def whole(parameters: Iterable[Any]) -> Iterator[None]:
    """To be entered by all ranks: within, these are there as a whole, on each rank's device."""
    if not (sharded := [one for one in parameters if is_sharded(one)]):
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded):
        yield
