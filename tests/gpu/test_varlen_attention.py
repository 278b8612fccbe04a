"""torch's flash kernels over packed samples, on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.small_models import batch, model
from trainer.models.causal_lm import LogProbModel
from trainer.models.packed_attention import Options, PackedLayout, attention, has_kernels
from trainer.models.settings import ModelSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
GPU = torch.device("cuda")
LENGTHS = np.array([1, 700, 64, 1, 333, 129])


@pytest.mark.parametrize("window", [None, 1, 100])
@pytest.mark.parametrize(
    ("heads", "keys", "size"), [(28, 4, 128), (14, 2, 64), (8, 8, 256), (16, 1, 80)]
)
def test_outputs_and_gradients_are_those_of_padded_rows_in_fp32(
    heads: int, keys: int, size: int, window: int | None
) -> None:
    assert has_kernels(GPU)
    random = torch.Generator().manual_seed(0)
    shapes = [(1, count, int(LENGTHS.sum()), size) for count in (heads, keys, keys)]
    drawn = [torch.randn(shape, generator=random).bfloat16() for shape in shapes]
    found = []
    for kind, kernel in ((torch.bfloat16, True), (torch.float32, False)):
        states = query, key, value = [each.to(GPU, kind).requires_grad_() for each in drawn]
        layout = PackedLayout(LENGTHS, GPU, kernel=kernel)
        output = attention(query, key, value, layout, Options(window=window))
        assert layout.padded is not kernel
        found.append([output, *torch.autograd.grad(output.float().square().sum(), states)])
    for got, expected in zip(*found, strict=True):
        assert (got.float() - expected).norm() < 2e-2 * expected.norm()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_packed_pass_in_bf16_is_a_padded_one(name: str) -> None:
    sequences, found = batch([9, 2, 6, 12], 3), []
    for packing in (False, True):
        of = model(name, torch.float32).to(GPU)
        wanted = ModelSettings(
            model="", mixed_precision=True, micro_batch_size=4, temperature=0.7, packing=packing
        )
        made = LogProbModel(of, GPU, wanted)
        log_probs, _ = made(sequences)
        log_probs.sum().backward()
        found.append([log_probs.detach(), *(one.grad for one in of.parameters())])
    assert made.attention == "samples packed, attention by torch's flash kernels"
    for padded, packed in zip(*found, strict=True):
        assert (padded - packed).abs().max() < 0.02 * padded.abs().max() + 0.02
