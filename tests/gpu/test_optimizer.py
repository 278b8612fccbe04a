"""What an update needs of a real GPU's memory, besides what the memory estimate counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.config.options.optimizer import OptimizerSettings
from trainer.workers.optimizer import Optimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


def test_a_step_copies_neither_moments_nor_gradients() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16))).cuda()
    size = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = Optimizer(model, OptimizerSettings(), updates=4)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
    assert torch.cuda.max_memory_allocated() - before < size / 4
