"""Flash attention's kernels take no fp32, which is what master weights are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AttentionInterface,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.integrations.flash_attention import get_target_dtype

from tests.support.ragged import scores
from tests.support.small_models import COMMON, batch, model
from trainer.models.causal_lm import LogProbModel, projection_of
from trainer.models.loading import load_backbone, load_causal_lm, load_scorer
from trainer.models.packed_attention import PACKED, attend
from trainer.models.settings import ModelSettings
from trainer.types import UnfitModelError

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
    expected = scores(LogProbModel(of, torch.device("cpu"), settings), sequences)
    of.set_attn_implementation(FLASH)
    got = scores(LogProbModel(of, torch.device("cpu"), settings), sequences)
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


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("gemma2", {"attn_logit_softcapping": 0.5, "sliding_window": 3}),
        ("gpt_oss", {"sliding_window": 3, "num_local_experts": 2, "num_experts_per_tok": 1}),
    ],
)
def test_soft_caps_and_sinks_count_in_packed_attention(name: str, own: dict[str, Any]) -> None:
    config = CONFIG_MAPPING[name](**{**COMMON, **own})
    torch.manual_seed(0)
    of = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in of.parameters():
        parameter.data *= 5
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    with torch.no_grad():
        expected = of(input_ids=tokens).logits
        of.config._attn_implementation = PACKED
        assert (of(input_ids=tokens).logits - expected).abs().max() < 1e-4


def test_a_model_with_a_mask_of_its_own_is_not_packed() -> None:
    states = torch.zeros(1, 2, 3, 4)
    with pytest.raises(TypeError, match="mask"):
        attend(nn.Module(), states, states, states, torch.zeros(1, 1, 3, 3))


@pytest.mark.parametrize(
    ("attention", "loaded"), [(None, "eager"), ("eager", "eager"), ("flex_attention", None)]
)
def test_a_soft_cap_is_not_left_out_where_no_attention_is_asked_for(
    tmp_path: Path, attention: str | None, loaded: str | None
) -> None:
    model("gemma2", torch.float32).save_pretrained(tmp_path)
    for load in (load_causal_lm, load_backbone, load_scorer):
        with pytest.raises(UnfitModelError, match=r"sdpa: .* leaves out attn_logit_softcapping 50"):
            load(str(tmp_path), torch.float32, "sdpa")
        of = load(str(tmp_path), torch.float32, attention)
        assert of.config._attn_implementation == (loaded or attention)
