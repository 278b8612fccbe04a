"""The size of a model: from its files, the hub's cache, or its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.support import qwen
from tests.support.architectures import ARCHITECTURES, COMMON
from trainer.cluster.model_size import known_size, named_size, read_size


def test_the_size_of_a_model_comes_from_its_directory_the_cache_or_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = read_size(str(qwen.write_config(tmp_path / "seven", "7B")))
    assert exact is not None
    assert exact.parameters == pytest.approx(7.6e9, rel=0.01)
    monkeypatch.setenv("HF_HUB_CACHE", str(qwen.write_cache(tmp_path / "hub")))
    assert known_size(str(tmp_path / "seven")) == known_size(qwen.name_of("7B")) == exact
    named = known_size("Qwen/Qwen2.5-7B")
    assert named is not None
    assert named.by_name
    assert named.parameters == pytest.approx(exact.parameters, rel=0.05)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-2-70b-hf", 70),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5),
        ("mistralai/Mixtral-8x7B-v0.1", 56),
        ("HuggingFaceTB/SmolLM2-135M", 0.135),
        ("/models/qwen3-30b-a3b/", 30),
    ],
)
def test_a_name_says_the_parameters(name: str, billions: float) -> None:
    size = named_size(name)
    assert size is not None
    assert size.parameters == pytest.approx(billions * 1e9, rel=0.11)


def test_a_name_says_the_parameters_that_a_token_goes_through() -> None:
    size = named_size("Qwen/Qwen3-30B-A3B-Instruct")
    assert size is not None
    assert size.active == pytest.approx(3.3e9)
    dense = named_size("Qwen/Qwen2.5-7B")
    assert dense is not None
    assert dense.active == dense.parameters


@pytest.mark.parametrize("name", ["some/model", "gpt2", "/checkpoints/step_100", "v2.5-beta"])
def test_a_name_without_a_number_says_nothing(name: str) -> None:
    assert named_size(name) is None


WIDER = {
    **{"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "q_lora_rank": 128},
    **{"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
    **{"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "num_experts": 16},
    **{"num_local_experts": 16, "n_routed_experts": 16, "moe_num_experts": 16},
}
"""Sizes at which matrices outweigh norms, biases and routers."""
FEATURES = {"deepseek_v4", "jetmoe", "longcat_flash", "gemma4_text", "gemma4_unified_text"}
"""Mixtures with parts of other shapes: they are up to half off, and not five sixths."""
UNWIDENED = ("llama4_text", "granitemoehybrid", "phimoe")
"""Their other fields must fit those of `WIDER`."""
MIXTURES = sorted(
    name
    for name, own in ARCHITECTURES.items()
    if own.get("num_experts_per_tok") and name not in UNWIDENED
)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_experts_of_a_mixture_count(tmp_path: Path, name: str) -> None:
    """Against the model that transformers makes of the same configuration."""
    kind = CONFIG_MAPPING[name.split("+")[0]]
    known = {*kind().to_dict(), *kind.attribute_map}
    own: dict[str, Any] = {**COMMON, **ARCHITECTURES[name]}
    own = {key: WIDER.get(key, value) for key, value in own.items() if key in known}
    if kinds := own.get("layer_types"):
        own["layer_types"] = (kinds * 4)[:4]
    config = kind(**{key: value for key, value in own.items() if value is not None})
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    found = read_size(str(tmp_path))
    assert found is not None
    off = 0.5 if name in FEATURES else 0.1
    assert found.parameters == pytest.approx(sum(p.numel() for p in made.parameters()), rel=off)


@pytest.mark.parametrize(
    ("own", "billions", "active"),
    [
        (
            {
                **{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48},
                **{"intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128},
                **{"num_experts_per_tok": 8, "num_attention_heads": 32, "head_dim": 128},
                **{"num_key_value_heads": 4, "vocab_size": 151_936, "tie_word_embeddings": False},
            },
            30.5,
            3.3,
        ),
        (
            {
                **{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32},
                **{"intermediate_size": 14_336, "num_local_experts": 8, "num_experts_per_tok": 2},
                **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000},
                **{"tie_word_embeddings": False},
            },
            46.7,
            12.9,
        ),
        (
            {
                **{"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61},
                **{"intermediate_size": 18_432, "moe_intermediate_size": 2048},
                **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8},
                **{"first_k_dense_replace": 3, "num_attention_heads": 128, "q_lora_rank": 1536},
                **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
                **{"v_head_dim": 128, "vocab_size": 129_280, "tie_word_embeddings": False},
            },
            671,
            37,
        ),
        (
            {
                **{"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24},
                **{"intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4},
                **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64},
                **{"vocab_size": 201_088, "tie_word_embeddings": False},
            },
            20.9,
            3.6,
        ),
    ],
)
def test_a_mixture_has_the_parameters_that_its_makers_publish(
    tmp_path: Path, own: dict[str, Any], billions: float, active: float
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(own))
    found = read_size(str(tmp_path))
    assert found is not None
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    assert found.active / 1e9 == pytest.approx(active, rel=0.2)  # some leave embeddings out


def test_a_feed_forward_layer_without_a_width_is_four_times_as_wide_as_the_model(
    tmp_path: Path,
) -> None:
    shape = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    sizes = []
    for name, width in (("said", {"n_inner": 256}), ("unsaid", {"n_inner": None})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(shape | width))
        sizes.append(read_size(str(tmp_path / name)))
    assert sizes[0] == sizes[1] is not None
