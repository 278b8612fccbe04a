"""Liger's kernels in a whole model, on a real GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.small_models import batch, model
from trainer.models.causal_lm import LogProbModel
from trainer.models.liger import use_liger
from trainer.models.settings import ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
SETTINGS = ModelSettings(model="", mixed_precision=False, micro_batch_size=4, temperature=0.7)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_model_gives_the_same_log_probabilities_and_gradients(name: str) -> None:
    pytest.importorskip("liger_kernel")
    device = torch.device("cuda")
    found = []
    for with_liger in (False, True):
        of = model(name, torch.float32)
        if with_liger:
            use_liger(of, device)
        of.to(device)
        scorer = LogProbModel(of, device, SETTINGS)
        assert scorer.packed
        log_probs, _ = scorer(batch([5, 9, 3, 12], seed=0))
        log_probs.sum().backward()
        found.append([log_probs.detach(), *(one.grad for one in of.parameters())])
    for ours, ligers in zip(*found, strict=True):
        assert torch.allclose(ours, ligers, rtol=1e-3, atol=1e-4)
