"""What DeepSpeed's ranks hold of each parameter, and the way back.

Where all ranks need a parameter, it is gathered whole on every rank, one after the other: no more
memory is needed than for the largest of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.utils import get_mapping_to_flat_buffer
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_set_full_fp32_param,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor, distributed, nn
from torch.nn import functional

from trainer.checkpoint.state import MOMENTS
from trainer.checkpoint.tensor_parts import part_of, whole_of
from trainer.models import zero3
from trainer.models.gpu_memory import Move
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


@dataclass(frozen=True, slots=True)
class Part:
    """What this rank's Adam has of a parameter: the memory that the next update changes."""

    start: int
    """Where it begins in the flat parameter."""
    weights: Tensor
    """[elements of the part] in fp32; in the parameter's shape if it is all of it."""
    moments: dict[str, Tensor]
    """Shaped as the weights."""


def part(parameter: Any) -> Part | None:
    """Return this rank's part of `parameter`; None if it has none. Nothing is sent or copied."""
    start, size = _range(parameter)
    shape = zero3.shape_of(parameter)
    if not size and shape.numel():
        return None
    fragments = [_fragment(parameter, key)[:size] for key in (None, *MOMENTS)]
    own, *moments = [one.view(shape) if size == shape.numel() else one for one in fragments]
    return Part(start, own, dict(zip(MOMENTS, moments, strict=True)))


def _range(parameter: Any) -> tuple[int, int]:
    """Return beginning and number of this rank's elements of the flat parameter."""
    if is_sharded(parameter):  # in equal parts, with padding at the end
        each = parameter.ds_tensor.numel()
        start = min(parameter.ds_numel, each * distributed.get_rank(parameter.ds_process_group))
        return start, min(each, parameter.ds_numel - start)
    if parameter._hp_mapping is None:
        return 0, 0
    place = parameter._hp_mapping.lp_fragment_address
    return place.start, place.numel


def _fragment(parameter: Any, key: str | None) -> Tensor:
    """Return a view of the part's weights, or of the moment `key`, wherever it is kept."""
    if not is_sharded(parameter):
        fragment: Tensor = parameter._hp_mapping.get_hp_fragment(key)
        return fragment
    # Its public counterpart would copy what is kept on the CPU to the GPU.
    found: Tensor = parameter._z3_optimizer._get_fp32_opt_state_partition(
        parameter, release_swap_buffers=True, optim_state_key=key
    )[0]
    return found


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


def move(optimizer: Any, adam: torch.optim.AdamW, move: Move) -> None:
    """Stage 3's weights in fp32, and moments: DeepSpeed moves them for an Adam of its own alone."""
    for place, part in enumerate(_parts(optimizer)):
        part.data = move(("masters", place), part)
        adam.state[part] = {key: move((key, place), held) for key, held in adam.state[part].items()}


def move_weights(optimizer: Any, model: nn.Module, move: Move) -> None:
    """Weights that DeepSpeed does not move, or not rightly: frozen ones, and all parts at stage 3.

    DeepSpeed leaves frozen weights where they are, and at stage 3 counts them as parts of its
    buffer of trained weights, which then ends too early.
    """
    if _parts(optimizer):
        _move_buffer(optimizer, move)
    for name, parameter in model.named_parameters():
        is_frozen = not parameter.requires_grad
        own = getattr(parameter, "ds_tensor", parameter) if is_frozen else None
        copies = getattr(parameter, "ds_secondary_tensor", None)  # within a node (`zpg`)
        for label, part in (("part", own), ("copies", copies)):
            if part is not None:
                part.data = move((label, name), part, frozen=is_frozen)


def _move_buffer(optimizer: Any, move: Move) -> None:
    """The buffer of which this rank's parts of trained weights are views, and the views."""
    buffer = optimizer.lp_param_buffer
    buffer.data = move("buffer", buffer)
    optimizer.fp16_partitioned_groups_flat.clear()
    optimizer._set_fp16_partitioned_groups_flat()
    parts = optimizer._get_parameter_partitions()
    for part, start, size in get_mapping_to_flat_buffer(parts):
        part.data = buffer.narrow(0, start, size)


def _parts(optimizer: Any) -> list[Tensor]:
    """What this rank's Adam updates at stage 3; at another stage nothing."""
    parts: list[Tensor] = getattr(optimizer, "fp32_partitioned_groups_flat", [])
    return parts


def put(parameter: Any, value: Tensor, held: dict[str, Any] | None) -> None:
    """Give `parameter` its weights [its shape], and what Adam `held` of it where there is any.

    A rank reads its own part of the moments, and at stage 3 of the weights. Ranks do not meet, so a
    slow one delays no collective; only hpZ's copies within a node (`zpg`) are made together.
    """
    kept = {key: held[key] for key in MOMENTS} if held else {}
    start, size = _range(parameter)
    if not is_sharded(parameter):
        whole = whole_of(value)
        parameter.data.copy_(whole)
        safe_set_full_fp32_param(parameter, whole.to(parameter.device))
        for key, moment in kept.items() if size else ():
            _fragment(parameter, key).copy_(part_of(moment, start, size))
        return
    padding = parameter.ds_tensor.numel() - size
    own = functional.pad(part_of(value, start, size), (0, padding))
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
        mine = functional.pad(part_of(moment, start, size), (0, padding))
        safe_set_local_optimizer_state(parameter, mine, key)
