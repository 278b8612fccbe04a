from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from trainer import weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_to_the_bit_in_any_precision(dtype: torch.dtype) -> None:
    source, target = nn.Linear(3, 2).to(dtype), nn.Linear(3, 2).to(dtype)
    arrays = weights.export(source.state_dict())
    for array in arrays.values():
        array.flags.writeable = False  # as they come out of the object store
    weights.load(target, arrays)
    assert torch.equal(source.weight, target.weight)
    assert torch.equal(source.bias, target.bias)


def test_a_master_in_fp32_feeds_an_engine_in_bf16() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2).to(torch.bfloat16)
    weights.load(target, weights.export(source.state_dict()))
    assert torch.equal(target.weight, source.weight.to(torch.bfloat16))


def test_exported_weights_are_views_not_copies() -> None:
    model = nn.Linear(3, 2)
    assert np.shares_memory(
        weights.export(model.state_dict())["weight"], model.weight.detach().numpy()
    )
