"""Weights of which each rank holds a part (ZeRO-3): what they are as a whole, and how to run them.

And how to try a model in fp32, whatever it is kept in.

Imported where DeepSpeed may be absent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from trainer.cluster import rendezvous
from trainer.config.options.parallelism import Sharding
from trainer.models.gpu_memory import give_freed_memory_back
from trainer.types import Rank


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


def prepare_deepspeed(rank: Rank) -> None:
    """To be called before any module that drives DeepSpeed is imported; again does no harm."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_RANK"] = "0"  # a process sees its own GPU only
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed

    # Its all-reduce over shared memory would be compiled now; gloo needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if rank.world == 1:
        rendezvous.alone()


READ_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' switch for its threads, which read on, to the whole model, while one is split."""


def splits(sharding: Sharding, rank: Rank) -> bool:
    """Whether weights are split among ranks."""
    return sharding.zero_stage >= 3 and rank.world > 1


@contextmanager
def split(sharding: Sharding, rank: Rank, *, offload: bool = False) -> Iterator[None]:
    """What transformers loads within is split among the ranks, if `sharding` splits weights.

    On all ranks at once. `offload`: the parts stay in the CPU's memory.
    """
    if not splits(sharding, rank):
        yield
        return
    prepare_deepspeed(rank)
    hook = register_module_parameter_registration_hook(_Split(sharding, offload=offload))
    before = os.environ.get(READ_AHEAD)
    os.environ[READ_AHEAD] = "1"
    try:
        yield
    finally:
        hook.remove()
        os.environ.pop(READ_AHEAD)
        if before is not None:
            os.environ[READ_AHEAD] = before


class _Split:
    """Called by torch for each parameter that is set on a module."""

    def __init__(self, sharding: Sharding, *, offload: bool) -> None:
        import deepspeed
        from deepspeed.utils import groups

        self._init = deepspeed.zero.Init(
            module=nn.Module(),  # nothing to split yet
            config_dict_or_path={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": weight_settings(sharding, offload=offload),
            },
            zero_param_parallel_group=groups._get_zero_param_intra_parallel_group(),
        )

    def __call__(self, module: nn.Module, name: str, parameter: Any) -> None:
        # transformers marks what it has read; what a checkpoint lacks is drawn at random later.
        if getattr(parameter, "_is_hf_initialized", False) and not is_sharded(parameter):
            # Not sent by the first rank, as DeepSpeed would: each reads its part of the file alone.
            # What arrives in the memory that a file is mapped to would stay there, too.
            self._init._convert_to_deepspeed_param(parameter)
            parameter.partition()


def weight_settings(sharding: Sharding, *, offload: bool) -> dict[str, Any]:
    """DeepSpeed's settings of how weights lie on the ranks."""
    device = {"offload_param": {"device": "cpu"}} if offload else {}
    return {"stage": 3, "zero_hpz_partition_size": sharding.zpg, **device}
