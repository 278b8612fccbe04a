"""The parts of a tiny Qwen2.5-VL that see images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from env.prepare.tiny_model import TinyModel

START, IMAGE, VIDEO, END = VISION_TOKENS = (
    "<|vision_start|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_end|>",
)
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{% for message in messages %}<|im_start|>{% if message.content is string %}{{ message.content }}\
{% else %}{% for part in message.content %}{% if part.type == "image" %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}\
{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"""
"""Without names of roles, which an alphabet need not have."""
PATCH, MERGED = 14, 2
LEAST, MOST = 4, 16
"""Tokens of an image."""


def prepare(tokenizer: Any, out: Path) -> None:
    """Give the tokeniser a chat template with images; write the image processor's file to `out`."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer.add_special_tokens({"additional_special_tokens": [*VISION_TOKENS, *CHAT_TOKENS]})
    tokenizer.chat_template = TEMPLATE
    area = (PATCH * MERGED) ** 2
    Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGED,
        size={"shortest_edge": LEAST * area, "longest_edge": MOST * area},
    ).save_pretrained(out)


def config(shape: TinyModel, tokenizer: Any) -> PreTrainedConfig:
    """Return the configuration of a Qwen2.5-VL; its encoder is half as wide as its text model."""
    from transformers import AutoConfig

    ids = dict(zip(VISION_TOKENS, tokenizer.convert_tokens_to_ids(VISION_TOKENS), strict=True))
    half = shape.hidden_size // shape.heads // 2
    edge = 3 * half // 8
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden_size,
        "intermediate_size": 3 * shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.max_length,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [half - 2 * edge, edge, edge],
        },
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    encoder = {
        "depth": 2,
        "hidden_size": shape.hidden_size // 2,
        "intermediate_size": shape.hidden_size,
        "num_heads": max(1, shape.heads // 2),
        "patch_size": PATCH,
        "spatial_merge_size": MERGED,
        "temporal_patch_size": 2,
        "window_size": 4 * PATCH * MERGED,
        "fullatt_block_indexes": [1],
        "out_hidden_size": shape.hidden_size,
    }
    return AutoConfig.for_model(
        "qwen2_5_vl",
        text_config=text,
        vision_config=encoder,
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[START],
        vision_end_token_id=ids[END],
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
