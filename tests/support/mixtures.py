"""Tiny mixtures of experts, as models in directories."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

MIXTURES: dict[str, dict[str, int]] = {
    "qwen3_moe": {},
    "qwen2_moe": {"shared_expert_intermediate_size": 32},
}
"""Without and with an expert that answers every token."""


def write_mixture(kind: str, directory: Path, heads: int = 2) -> Path:
    """Writes a model of four experts, of which two answer a token. Returns its directory.

    It has two heads of keys and values.
    """
    shape = TinyModel(hidden_size=64, layers=2, heads=2, max_length=256)
    write_model(shape, "0123456789+=", directory)  # its tokeniser
    tokenizer = AutoTokenizer.from_pretrained(directory)
    config = CONFIG_MAPPING[kind](
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        **MIXTURES[kind],
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    return directory
