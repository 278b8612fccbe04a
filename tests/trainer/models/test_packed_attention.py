"""Flash attention's kernels take no fp32, which is what master weights are in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.flash_attention import get_target_dtype

from tests.support.small_models import batch, model
from trainer.models.causal_lm import LogProbModel, projection_of
from trainer.models.packed_attention import attend
from trainer.models.settings import ModelSettings

FLASH = "flash_attention_2"


def strict(module: nn.Module, query: Tensor, *states: Tensor, **given: Any) -> tuple[Tensor, None]:
    """What transformers hands to the kernels, and how they answer it."""
    if (get_target_dtype(query, module) or query.dtype) is torch.float32:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    key, value, mask = states
    return attend(module, query, key, value, mask, scaling=given["scaling"])


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(model: Any, name: str | None, *_: object, **__: object) -> str:
        return name or "sdpa"

    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", unchecked)
    monkeypatch.setitem(AttentionInterface._global_mapping, FLASH, strict)


def test_fp32_masters_with_flash_attention_are_scored_in_bf16() -> None:
    of, sequences = model("llama", torch.float32), batch([9, 4, 6], 3)
    settings = ModelSettings(
        model="", mixed_precision=True, micro_batch_size=4, temperature=0.7, packing=False
    )
    expected = LogProbModel(of, torch.device("cpu"), settings).log_probs(sequences)
    of.set_attn_implementation(FLASH)
    got = LogProbModel(of, torch.device("cpu"), settings).log_probs(sequences)
    assert of.config._attn_implementation == FLASH
    assert abs(got - expected).max() < 0.05


def test_a_head_is_recognised_behind_flash_attention() -> None:
    of = model("llama", torch.float32)
    of.set_attn_implementation(FLASH)
    assert projection_of(of) is not None
    assert of.config._attn_implementation == FLASH


def test_kernels_that_know_of_no_boundaries_are_given_padded_samples() -> None:
    of = model("llama", torch.bfloat16)
    of.set_attn_implementation(FLASH)
    settings = ModelSettings(model="", mixed_precision=True, micro_batch_size=4, temperature=0.7)
    assert not LogProbModel(of, torch.device("cpu"), settings).packed
    assert of.config._attn_implementation == FLASH
