"""Products of half-precision numbers with sums in float32."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from trainer.models.zero3 import is_half

log = logging.getLogger(__name__)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, of [N, K] and [K, M], with sums in float32 at least, not rounded after.

    The product of two numbers in half precision is exact in float32. GPUs multiply them with sums
    in float32, which autograd does not support; elsewhere they are widened first.
    """
    if is_multiplied_as_it_is(right):
        return torch.mm(left.to(right.dtype), right, out_dtype=torch.float32)
    kind = torch.promote_types(right.dtype, torch.float32)
    return left.to(kind) @ right.to(kind)


def is_multiplied_as_it_is(tensor: Tensor) -> bool:
    return tensor.is_cuda and is_half(tensor) and _multiplies(tensor.device, tensor.dtype)


@cache
@torch.no_grad()
def _multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a GPU multiplies half precision to float32 without widening first, by a trial.

    NVIDIA's GPUs have bf16 since Ampere, compute capability 8.0. On AMD's GPUs, which torch also
    calls `cuda`, torch refuses such products up to 2.9 (pytorch/pytorch pull request 162600).
    """
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return False
    left = torch.full((16, 16), 2.0**-12, dtype=dtype, device=device)
    left[:, 0] = 1.0
    try:
        found = torch.mm(left, torch.ones_like(left), out_dtype=torch.float32)
    except (RuntimeError, TypeError) as error:
        log.warning(
            "torch does not multiply half precision to float32 on this GPU, so the head takes "
            "several times as long: %s",
            error,
        )
        return False
    # Half precision has no such number.
    return bool((found == 1 + 15 * 2.0**-12).all())
