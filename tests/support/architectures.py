"""Tiny configurations of causal language models: nearly every architecture of transformers.

Each limit that a configuration names (a window, a chunk, the positions of pretraining) is a few
tokens, so short rows are on both sides of it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCABULARY = 64
WINDOW = 6
PRETRAINED = 12
POSITIONS = 48
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "shared_expert_intermediate_size": 8,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
}
INDEXER: dict[str, Any] = {"index_topk": PRETRAINED, "index_n_heads": 2, "index_head_dim": 8}
SLIDING: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
ROTARY: dict[str, Any] = {"rope_theta": 10_000.0}
LONGROPE: dict[str, Any] = {
    **ROTARY,
    "rope_type": "longrope",
    "original_max_position_embeddings": PRETRAINED,
    "factor": POSITIONS / PRETRAINED,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 8.0, 16.0, 64.0],
}
DYNAMIC: dict[str, Any] = {**ROTARY, "rope_type": "dynamic", "factor": 2.0}
YARN: dict[str, Any] = {
    **ROTARY,
    "rope_type": "yarn",
    "factor": POSITIONS / PRETRAINED,
    "original_max_position_embeddings": PRETRAINED,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 4,
    "mamba_chunk_size": 4,
    "mamba_dt_rank": 2,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "afmoe": SLIDING | EXPERTS | {"num_dense_layers": 1},
    "apertus": {},
    "arcee": {},
    "aria_text": EXPERTS,
    "axk1": EXPERTS | LATENT,
    "axk2": EXPERTS | LATENT | INDEXER,
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "biogpt": {},
    "bitnet": {},
    "bloom": {},
    "codegen": {"rotary_dim": 4, "n_ctx": POSITIONS},
    "cohere": {"logit_scale": 0.25},
    "cohere2": SLIDING,
    "cohere2_moe": SLIDING | EXPERTS,
    "cwm": SLIDING,
    "ctrl": {"dff": 24},
    "deepseek_v2": EXPERTS | LATENT,
    "deepseek_v3": EXPERTS | LATENT,
    "deepseek_v32": EXPERTS | LATENT | INDEXER,
    "deepseek_v4": EXPERTS,
    "diffllama": {},
    "doge": {"keep_window_size": PRETRAINED},
    "dots1": EXPERTS | SLIDING,
    "ernie4_5": {},
    "ernie4_5_moe": EXPERTS,
    "exaone4": SLIDING,
    "exaone_moe": SLIDING | EXPERTS,
    "falcon": {
        "head_dim": None,
        "alibi": False,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
    },
    "falcon+alibi": {"head_dim": None, "alibi": True},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "falcon_mamba": {"state_size": 4, "time_step_rank": 2},
    "flex_olmo": EXPERTS,
    "gemma": {},
    "gemma2": SLIDING | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": SLIDING | {"query_pre_attn_scalar": 8},
    "gemma3_text+longrope": SLIDING
    | {
        "query_pre_attn_scalar": 8,
        "rope_parameters": {
            "full_attention": LONGROPE,
            "sliding_attention": {**ROTARY, "rope_type": "default"},
        },
    },
    "gemma3n_text": SLIDING
    | {
        "num_hidden_layers": 2,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0, 0.0],
        "intermediate_size": [24, 24],
    },
    "gemma4_text": SLIDING
    | {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": VOCABULARY},
    "gemma4_unified_text": SLIDING,
    "glm": {},
    "glm4": {},
    "glm4_moe": EXPERTS,
    "glm4_moe_lite": EXPERTS | LATENT,
    "glm_moe_dsa": EXPERTS | LATENT | INDEXER,
    "gpt-sw3": {},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neo": {
        "num_layers": 2,
        "num_hidden_layers": None,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
    },
    "gpt_neox": {},
    "gpt_neox+dynamic": {
        "rope_parameters": {**DYNAMIC, "partial_rotary_factor": 0.5},
    },
    "gpt_neox_japanese": {},
    "gpt_oss": SLIDING | EXPERTS,
    "gptj": {"rotary_dim": 4},
    "granite": {"logits_scaling": 4.0},
    "granite_swa": SLIDING,
    "granitemoe": EXPERTS,
    "granitemoe_swa": SLIDING | EXPERTS,
    "granitemoehybrid": MAMBA | EXPERTS | {"layer_types": ["mamba", "attention"]},
    "granitemoeshared": EXPERTS | {"shared_intermediate_size": 8},
    "helium": {},
    "hrm_text": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "hy_v3": EXPERTS,
    "hyperclovax": {},
    "inkling_text": EXPERTS
    | {
        "sliding_window_size": WINDOW,
        "d_rel": 4,
        "rel_extent": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
    },
    "jais2": {},
    "jamba": {"num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 2, "use_mamba_kernels": False}
    | {"attn_layer_period": 2, "attn_layer_offset": 1},
    "jetmoe": {"num_local_experts": 4, "kv_channels": 8, "num_experts_per_tok": 2},
    "laguna": SLIDING | EXPERTS,
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "lfm2_moe": EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama": {},
    "llama+dynamic": {"rope_parameters": DYNAMIC, "max_position_embeddings": PRETRAINED},
    "llama+linear": {"rope_parameters": {**ROTARY, "rope_type": "linear", "factor": 2.0}},
    "llama+longrope": {"rope_parameters": LONGROPE},
    "llama+yarn": {"rope_parameters": YARN},
    "llama4_text": {
        "intermediate_size_mlp": 24,
        "num_local_experts": 2,
        "attention_chunk_size": WINDOW,
        "floor_scale": PRETRAINED,
        "no_rope_layers": [1, 0],
    },
    "longcat_flash": LATENT
    | {"num_layers": 1, "num_hidden_layers": 2, "ffn_hidden_size": 24, "moe_topk": 2}
    | {"n_routed_experts": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 8},
    "mamba": {"state_size": 4, "time_step_rank": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 4, "n_groups": 1, "chunk_size": 4},
    "mellum": SLIDING | EXPERTS,
    "mimo_v2_flash": SLIDING | EXPERTS | {"v_head_dim": 8},
    "minicpm3": LATENT | {"rope_parameters": LONGROPE},
    "minimax": EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "block_size": 4},
    "minimax_m2": EXPERTS,
    "minimax_m3_vl_text": EXPERTS | {"dense_intermediate_size": 24},
    "ministral": SLIDING,
    "ministral3": {
        "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5, "beta_fast": 32.0, "beta_slow": 1.0}
    },
    "mistral": {"sliding_window": WINDOW},
    "mixtral": EXPERTS | {"sliding_window": WINDOW},
    "modernbert-decoder": {
        "local_attention": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": POSITIONS},
    "nanochat": {},
    "nemotron": {},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 1,
        "chunk_size": 4,
    }
    | {"mamba_n_groups": 1},
    "olmo": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "olmoe": EXPERTS,
    "openai-gpt": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {},
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": PRETRAINED},
    "phi3+window": {"sliding_window": WINDOW},
    "phimoe": EXPERTS
    | {
        "rope_parameters": LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.2},
        "original_max_position_embeddings": PRETRAINED,
    },
    "qwen2": {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "qwen2+yarn": {"rope_parameters": YARN},
    "qwen2_moe": EXPERTS,
    "qwen3": {},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "qwen3_moe": EXPERTS,
    "qwen3_next": EXPERTS
    | {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "recurrent_gemma": {"attention_window_size": WINDOW, "num_hidden_layers": 3},
    "rwkv": {"attention_hidden_size": 32},
    "seed_oss": {},
    "smollm3": SLIDING | {"use_sliding_window": True, "no_rope_layers": [1, 0]},
    "solar_open": EXPERTS,
    "stablelm": {},
    "starcoder2": {"sliding_window": WINDOW},
    "vaultgemma": SLIDING | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "xglm": {"ffn_dim": 24, "attention_heads": 4, "num_layers": 2},
    "youtu": LATENT,
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_key_value_heads": 4,
        "mamba_d_state": 4,
        "mamba_dt_rank": 2,
        "n_mamba_heads": 2,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"],
        "num_key_value_heads": 4,
        "mamba_d_state": 4,
        "n_mamba_heads": 8,
        "mamba_ngroups": 1,
        "chunk_size": 4,
        "use_mamba_kernels": False,
    },
}
"""Configurations by transformers' name of the architecture; what follows a `+` is a variant."""

LOUDER, QUIETER = 10.0, 4.0
"""Factors of the random weights, so that attention has preferences as a trained model's has."""
ROUGH = frozenset({"minicpm3", "youtu"})
"""Architectures whose logits would be so large that float32 rounds them by 1e-4."""


def config(name: str) -> Any:
    own = copy.deepcopy({**COMMON, **ARCHITECTURES[name]})  # configurations keep what they get
    return CONFIG_MAPPING[name.split("+")[0]](
        **{key: value for key, value in own.items() if value is not None}
    )


def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model with random weights."""
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config(name), dtype=dtype).eval()
    with torch.no_grad():
        for part, parameter in made.named_parameters():
            if parameter.dim() > 1 and not part.endswith("A_log"):
                parameter *= QUIETER if name in ROUGH or made._is_stateful else LOUDER
            elif not made._is_stateful:
                parameter += 0.1 * torch.randn(parameter.shape)
    return made
