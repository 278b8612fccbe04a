"""A model's buffers reach the engines in the precision that the model keeps them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from trainer.weight_sync import shared_memory
from trainer.weight_sync.packing import WeightSource

BIAS = "e_score_correction_bias"


def mixture(dtype: torch.dtype, seed: int) -> Any:
    """Experts are chosen by a buffer that stays in fp32."""
    config = Glm4MoeConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        n_routed_experts=5,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for name, buffer in model.named_buffers():
        if BIAS in name:
            buffer.copy_(torch.rand(buffer.shape))
    return model.to(dtype)


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    """As an engine in bf16 loads it."""
    mixture(torch.float32, seed=1).save_pretrained(tmp_path)
    return AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)


def compared(model: Any, engine: Any) -> None:
    expected, found = model.state_dict(), engine.state_dict()
    buffers = [name for name in expected if BIAS in name]
    assert len(buffers) == 1
    for name, tensor in expected.items():
        kind = torch.float32 if name in buffers else torch.bfloat16
        assert found[name].dtype is kind
        assert torch.equal(found[name], tensor.to(kind)), name


def test_through_shared_memory_they_arrive_to_the_bit(engine: Any) -> None:
    model = mixture(torch.float32, seed=2)
    outbox, inbox = (
        shared_memory.SharedMemorySender(torch.bfloat16),
        shared_memory.SharedMemoryReceiver(),
    )
    buffers = {name for name, _ in model.named_buffers()}
    for part in outbox.offer(model.state_dict(), buffers=buffers):
        shared_memory.load(engine, dict(inbox.tensors(outbox.stage(part))))
    compared(model, engine)


def test_from_gpu_to_gpu_they_arrive_to_the_bit(engine: Any) -> None:
    model = mixture(torch.float32, seed=2)
    offered = WeightSource(model, torch.bfloat16)
    for part in offered.buckets():
        with offered.whole(part) as tensors:
            told = {entry.name: getattr(torch, entry.dtype) for entry in part}
            assert {name: tensor.dtype for name, tensor in tensors.items()} == told
            shared_memory.load(engine, tensors)
    compared(model, engine)
