"""What DeepSpeed's ranks hold of each parameter, whole and by name, and the way back.

A parameter is gathered whole on every rank, one after the other: no more memory is needed than
for the largest of them.
"""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.utils import get_mapping_to_flat_buffer
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor, distributed, nn
from torch.nn import functional

from trainer.checkpoint.remote_tensor import part_of, whole_of
from trainer.checkpoint.state import MOMENTS
from trainer.models import zero3
from trainer.models.zero3 import is_sharded


def whole(tensor: Tensor, *, keep: bool) -> Tensor:
    """The tensor as the model computes with it; of a sharded one a copy on the CPU if `keep`."""
    if not is_sharded(tensor):
        return tensor
    with zero3.whole([tensor]):
        return tensor.detach().to("cpu", copy=True) if keep else tensor


def weights(parameter: Tensor) -> Tensor:
    """[shape of the parameter] in fp32, as the optimizer updates it."""
    gathered: Tensor = safe_get_full_fp32_param(parameter)
    return gathered


def moments(parameter: Tensor) -> dict[str, Tensor]:
    return {key: safe_get_full_optimizer_state(parameter, key) for key in MOMENTS}


def begin(optimizer: Any, adam: torch.optim.AdamW) -> None:
    """Moments of zero. Left to AdamW's first update, DeepSpeed finds the first group's alone."""
    flat = _parts(optimizer)
    for part in flat or optimizer.single_partition_of_fp32_groups:
        adam.state[part] = {
            "step": torch.tensor(0.0, device=part.device),
            **{key: torch.zeros_like(part) for key in MOMENTS},
        }
    find_moments(optimizer)


def find_moments(optimizer: Any) -> None:
    """Have DeepSpeed look where each parameter's moments are: it looks once, and again only if told
    to where they have moved. Stage 3 needs no telling."""
    if not _parts(optimizer):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def move(optimizer: Any, adam: torch.optim.AdamW, device: torch.device | str) -> None:
    """Stage 3's weights in fp32, and moments: DeepSpeed moves them for an Adam of its own alone."""
    for part in _parts(optimizer):
        part.data = _moved(part, device)
        adam.state[part] = {key: _moved(held, device) for key, held in adam.state[part].items()}


def move_weights(optimizer: Any, model: nn.Module, device: torch.device | str) -> None:
    """Weights that DeepSpeed does not move, or not rightly: frozen ones, and all parts at stage 3.

    DeepSpeed leaves frozen weights where they are, and at stage 3 counts them as parts of its
    buffer of trained weights, which then ends too early.
    """
    if _parts(optimizer):
        _move_buffer(optimizer, device)
    for parameter in model.parameters():
        own = None if parameter.requires_grad else getattr(parameter, "ds_tensor", parameter)
        copies = getattr(parameter, "ds_secondary_tensor", None)  # within a node (`zpg`)
        for part in (own, copies):
            if part is not None:
                part.data = _moved(part, device)


def _move_buffer(optimizer: Any, device: torch.device | str) -> None:
    """The buffer of which this rank's parts of trained weights are views, and the views."""
    buffer = optimizer.lp_param_buffer
    buffer.data = _moved(buffer, device)
    optimizer.fp16_partitioned_groups_flat.clear()
    optimizer._set_fp16_partitioned_groups_flat()
    parts = optimizer._get_parameter_partitions()
    for part, start, size in get_mapping_to_flat_buffer(parts):
        part.data = buffer.narrow(0, start, size)


def _moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A copy in any case, so that CPUs show what still has the memory that a GPU would free."""
    return tensor.detach().to(device, copy=True)


def _parts(optimizer: Any) -> list[Tensor]:
    """What this rank's Adam updates at stage 3; at another stage nothing."""
    parts: list[Tensor] = getattr(optimizer, "fp32_partitioned_groups_flat", [])
    return parts


def put(parameter: Any, value: Tensor, held: dict[str, Any] | None) -> None:
    """Give `parameter` its weights [its shape], and what Adam `held` of it where there is any.

    Of remote tensors a rank of stage 3 reads its own part. Ranks do not meet, so a slow one delays
    no collective; only hpZ's copies within a node (`zpg`) are made together.
    """
    kept = {key: held[key] for key in MOMENTS} if held else {}
    if not is_sharded(parameter):
        parameter.data.copy_(value)
        safe_set_full_fp32_param(parameter, value.to(parameter.device))
        for key, moment in kept.items():
            safe_set_full_optimizer_state(parameter, moment.to(parameter.device), key)
        return
    own = _own(parameter, value)
    if parameter.ds_secondary_tensor is None:
        parameter.ds_tensor.data.copy_(own)
        if parameter.ds_status == ZeroParamStatus.AVAILABLE:  # small, and whole on every rank
            parameter.data.copy_(whole_of(value))
    else:
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if distributed.get_rank(parameter.ds_process_group) == 0:
                parameter.data.copy_(whole_of(value))
    safe_set_local_fp32_param(parameter, own)
    for key, moment in kept.items():
        safe_set_local_optimizer_state(parameter, _own(parameter, moment), key)


def _own(parameter: Any, value: Tensor) -> Tensor:
    """This rank's equal part of `value`, with zeros at the end where it does not divide."""
    size = parameter.ds_tensor.numel()
    start = min(value.numel(), size * distributed.get_rank(parameter.ds_process_group))
    part = part_of(value, start, min(size, value.numel() - start))
    return functional.pad(part, (0, size - part.numel()))
