"""Which of torch's AdamW a model gets."""

from __future__ import annotations

import pytest
from torch import nn

from trainer.config.options.optimizer import OptimizerSettings
from trainer.workers.optimizer import Optimizer


@pytest.mark.parametrize("on_gpu", [False, True])
def test_only_on_a_gpu_it_is_the_fused_one_which_copies_no_moments(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    monkeypatch.setattr(nn.Parameter, "is_cuda", on_gpu, raising=False)
    optimizer = Optimizer(nn.Linear(2, 2), OptimizerSettings(), updates=4)
    assert optimizer._adam.defaults["fused"] is (True if on_gpu else None)
