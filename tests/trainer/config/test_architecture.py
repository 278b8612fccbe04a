"""What an architecture asks of a run, from its config.json alone."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config import architecture

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 16,
    "short_factor": [1.0],
    "long_factor": [4.0],
}


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ({"max_position_embeddings": 64, "rope_parameters": DYNAMIC}, "rope_type dynamic"),
        ({"max_position_embeddings": 64, "rope_scaling": DYNAMIC}, "rope_type dynamic"),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": {}},
            },
            "rope_type dynamic",
        ),
        ({"model_type": "gpt2", "n_positions": 64}, "a table of 64 positions"),
        ({"model_type": "mpt", "max_seq_len": 64}, "a table of 64 positions"),
        ({"model_type": "doge", "keep_window_size": 64}, "keep_window_size"),
    ],
)
def test_samples_longer_than_a_model_reads_are_refused(shape: dict[str, Any], named: str) -> None:
    assert architecture.positions_fault(shape, 64) is None
    fault = architecture.positions_fault(shape, 65)
    assert fault is not None
    assert named in fault
    assert "up to 65 tokens here. Give --max_len 64, or less" in fault


def test_an_ordinary_rotary_embedding_goes_beyond_its_pretraining() -> None:
    shape = {"model_type": "llama", "max_position_embeddings": 64, "rope_theta": 10_000.0}
    assert architecture.positions_fault(shape, 1000) is None


@pytest.mark.parametrize(
    ("shape", "limit"),
    [
        ({"rope_scaling": LONGROPE}, 16),
        ({"rope_scaling": {**LONGROPE, "type": "su", "rope_type": "su"}}, 16),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 8}, 8),
        ({"rope_parameters": {"full_attention": LONGROPE}}, 16),
        ({"rope_parameters": {**LONGROPE, "short_factor": [4.0]}}, None),
        ({"rope_parameters": {"rope_type": "yarn"}}, None),
        ({}, None),
    ],
)
def test_long_factors_begin_after_pretraining(shape: dict[str, Any], limit: int | None) -> None:
    assert architecture.long_factors_from(shape) == limit


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        ({}, False),
        ({"factor": 4.0}, False),
        ({"factor": 2.0}, True),
        ({"attention_factor": 1}, True),
    ],
)
def test_an_attention_factor_that_vllm_ignores_is_refused(
    own: dict[str, float], refused: bool
) -> None:
    shape = {"max_position_embeddings": 64, "rope_parameters": LONGROPE | own}
    assert (architecture.vllm_fault(shape) is not None) == refused


@pytest.mark.parametrize("wanted", [None, "sdpa", "eager", "flash_attention_2", "flex_attention"])
def test_a_soft_cap_is_never_left_out(wanted: str | None) -> None:
    shape = {"model_type": "gemma2", "attn_logit_softcapping": 50.0}
    fault = architecture.attention_fault(shape, wanted) if wanted else None
    assert (fault is not None) == (wanted == "sdpa")
    assert architecture.attention_of(shape, wanted) == (wanted or "eager")


@pytest.mark.parametrize(
    "shape",
    [{"model_type": "llama"}, {"model_type": "gemma3_text", "attn_logit_softcapping": None}],
)
def test_other_models_keep_transformers_choice(shape: dict[str, Any]) -> None:
    assert architecture.attention_of(shape, None) is None
    assert architecture.attention_fault(shape, "sdpa") is None


def test_attentions_that_transformers_computes_otherwise_are_refused() -> None:
    falcon = {"model_type": "falcon", "alibi": True}
    assert "twice" in str(architecture.attention_fault(falcon, "eager"))
    assert architecture.attention_fault(falcon | {"alibi": False}, "eager") is None
    assert architecture.attention_of({"model_type": "doge"}, None) == "eager"


def test_what_the_transformers_engine_cannot_decode_is_known_beforehand() -> None:
    llama4 = {"model_type": "llama4_text", "attn_temperature_tuning": True, "floor_scale": 32}
    assert "keys and values" in str(architecture.decoding_fault({"model_type": "mamba2"}, 8))
    assert "no cache" in str(architecture.decoding_fault({"model_type": "openai-gpt"}, 8))
    assert architecture.decoding_fault(llama4, 32) is None
    assert "Give --max_len 32" in str(architecture.decoding_fault(llama4, 33))
    assert architecture.decoding_fault({"model_type": "llama"}, 8) is None


@pytest.mark.parametrize(
    ("shape", "wanted", "said"),
    [
        ({"model_type": "qwen2"}, None, None),
        ({}, "sdpa", None),
        ({"model_type": "qwen2"}, "eager", "Leave --attn_implementation out, or give sdpa"),
        ({"model_type": "mamba2"}, "flash_attention_2", "a layer of mamba2 has a state"),
        ({"model_type": "bloom"}, None, "a mask or an attention of its own"),
        ({"attn_logit_softcapping": 50.0}, None, "flash_attention_2 has it"),
        ({"attn_logit_softcapping": 50.0}, "flash_attention_2", None),
    ],
)
def test_why_samples_cannot_be_packed_is_said_with_what_would_do(
    shape: dict[str, Any], wanted: str | None, said: str | None
) -> None:
    fault = architecture.packing_fault(shape, wanted)
    assert fault is None if said is None else said in (fault or "")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"model_type": "qwen2", "num_attention_heads": 28}, None),
        ({"model_type": "qwen2", "num_attention_heads": 14}, "14 heads of attention. 1, 2, 7, 14"),
        ({"model_type": "gpt2", "n_head": 6}, "the model's 6 heads"),
        ({"model_type": "qwen3_next", "num_attention_heads": 16}, "meet outside attention"),
        ({"model_type": "gpt_oss", "num_attention_heads": 64}, "an attention of its own. Leave"),
        ({}, None),
    ],
)
def test_why_ranks_cannot_share_samples_is_said_with_what_would_do(
    shape: dict[str, Any], said: str | None
) -> None:
    fault = architecture.sharing_fault(shape, 4)
    assert fault is None if said is None else said in (fault or "")
