"""Models of many architectures with random weights, and batches for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from env.prepare.model import write_model as write_tokenizer
from env.prepare.tiny_model import TinyModel
from tests.support.ragged import sequences_of
from trainer.types import Sequences

VOCABULARY = 23
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1},
    "gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 4.0},
    "gpt_neox": {"num_key_value_heads": 4},
    "bloom": {},
    "llama4_text": {"intermediate_size_mlp": 24, "num_local_experts": 2},
}


CONVOLUTION: dict[str, Any] = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}


def model(name: str, dtype: torch.dtype = torch.float64, **changes: float) -> Any:
    own = MODELS.get(name, CONVOLUTION)
    config = CONFIG_MAPPING[name](**{**COMMON, **own, **changes})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def write_model(name: str, directory: Path, **changes: float) -> Path:
    """Writes the model, in fp32, with a tokeniser. Returns its directory."""
    write_tokenizer(TinyModel(hidden_size=16, layers=1, heads=1), "0123456789+=", directory)
    model(name, torch.float32, **changes).save_pretrained(directory)
    return directory


def batch(lengths: list[int], seed: int) -> Sequences:
    """Random tokens; every sample has actions, with gaps, and no action first."""
    rng = np.random.default_rng(seed)
    inside = np.arange(max(lengths)) < np.array(lengths)[:, None]
    tokens = np.where(inside, rng.integers(2, VOCABULARY, inside.shape), 0)
    action_mask = inside & (rng.random(inside.shape) < 0.6)
    action_mask[:, 0] = False
    action_mask[:, 1] = True
    return sequences_of(tokens, np.array(lengths), action_mask)
