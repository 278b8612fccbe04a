"""Products of half-precision numbers with sums in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.models.zero3 import is_half


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, of [N, K] and [K, M], with sums in float32 at least, not rounded after.

    The product of two numbers in half precision is exact in float32. CUDA multiplies them with
    sums in float32, which autograd does not support; elsewhere they are widened first.
    """
    if is_multiplied_as_it_is(right):
        return torch.mm(left.to(right.dtype), right, out_dtype=torch.float32)
    kind = torch.promote_types(right.dtype, torch.float32)
    return left.to(kind) @ right.to(kind)


def is_multiplied_as_it_is(tensor: Tensor) -> bool:
    if not (tensor.is_cuda and is_half(tensor)):
        return False
    return _gives_wide_products(torch.version.hip, torch.cuda.get_device_capability(tensor.device))


def _gives_wide_products(rocm: str | None, capability: tuple[int, int]) -> bool:
    """Return whether a GPU multiplies half precision to float32 without widening first.

    `rocm`: torch.version.hip. torch also calls AMD's GPUs `cuda`, but refuses such products there.
    NVIDIA's GPUs have bf16 since Ampere, which has compute capability 8.0.
    """
    return rocm is None and capability >= (8, 0)
