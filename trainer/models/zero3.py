"""ZeRO-3: split weights over ranks, gather them, and run a sharded model before DeepSpeed wraps it.

Also runs a model in fp32 for a trial. Processes without DeepSpeed import this module, too.
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
    """Return the shape of the whole tensor. A rank's own tensor is empty while it is sharded."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


@contextmanager
def readable(model: nn.Module) -> Iterator[None]:
    """Make `model` run in the block without a wrapper, in fp32 at least, without gradients.

    A layer is gathered, and in fp32, only while it computes. All ranks must enter the block.
    """
    hooks = []
    try:
        for module, parameters in _in_turn(model):
            if any(is_sharded(weight) or is_half(weight) for weight in parameters):
                turn = _Turn(parameters)
                hooks.append(module.register_forward_pre_hook(turn.begin))
                hooks.append(module.register_forward_hook(turn.end, always_call=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _in_turn(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yield each layer with all its parameters, and each other module with its own.

    A layer is one unit, because some layers read the weights of a module that they do not call.
    """
    if isinstance(module, nn.ModuleList):
        for layer in module:
            yield layer, list(layer.parameters())
        return
    yield module, list(module.parameters(recurse=False))
    for child in module.children():
        yield from _in_turn(child)


class _Turn:
    """Gathers a module's weights on every rank, in fp32 at least, while the module computes."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._held = ExitStack()

    def begin(self, *_: object) -> None:
        self._held.enter_context(whole(self._parameters))
        self._held.enter_context(_widened(self._parameters))

    def end(self, *_: object) -> None:
        self._held.close()
        give_freed_memory_back()  # else the memory of several layers would stay


def is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)


@contextmanager
def _widened(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Convert parameters in half precision to fp32 in the block."""
    held = [(weight, weight.data) for weight in parameters if is_half(weight)]
    for parameter, data in held:
        parameter.data = data.float()
    try:
        yield
    finally:
        for parameter, data in held:
            parameter.data = data


@contextmanager
def whole(parameters: Iterable[Any]) -> Iterator[None]:
    """Gather the parameters on each rank's device in the block. All ranks must enter it."""
    if not (sharded := [weight for weight in parameters if is_sharded(weight)]):
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded):
        yield


def set_up_deepspeed() -> None:
    """Import DeepSpeed with the CPU as its device if there is no GPU, and without its messages.

    Call it before a module that uses DeepSpeed is imported.
    """
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    # Its checkpoints have these beside tensors; `tensors_alone` has all else refused.
    held = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    torch.serialization.add_safe_globals(held)
    # DeepSpeed would compile its all-reduce over shared memory now; gloo needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def prepare_deepspeed(rank: Rank) -> None:
    """Set up DeepSpeed for a rank of Ray, which sees its own GPU only."""
    os.environ["LOCAL_RANK"] = "0"
    set_up_deepspeed()
    if rank.world == 1:
        rendezvous.alone()


READ_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' switch of its loading threads, which would load the whole model meanwhile."""


def splits(sharding: Sharding, rank: Rank) -> bool:
    """Return whether weights are split over ranks."""
    return sharding.zero_stage >= 3 and rank.world > 1


@contextmanager
def split(sharding: Sharding, rank: Rank, *, offload: bool = False) -> Iterator[None]:
    """Split the weights that transformers loads in the block over ranks, if `sharding` says so.

    All ranks must enter the block. `offload`: the parts stay in the CPU's memory.
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
    """A hook that torch calls for each parameter that is set on a module."""

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
        # transformers marks parameters that it has read, and initialises the others later.
        if getattr(parameter, "_is_hf_initialized", False) and not is_sharded(parameter):
            # Each rank reads its own part of the file; DeepSpeed would send it from the first rank,
            # and the received copy would stay in the memory that the file is mapped to.
            self._init._convert_to_deepspeed_param(parameter)
            parameter.partition()


def weight_settings(sharding: Sharding, *, offload: bool) -> dict[str, Any]:
    """Return DeepSpeed's settings for the weights of ZeRO-3."""
    device = {"offload_param": {"device": "cpu"}} if offload else {}
    return {"stage": 3, "zero_hpz_partition_size": sharding.zpg, **device}
