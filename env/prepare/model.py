"""A tiny causal language model with random weights and its tokenizer, in Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from env.prepare.tiny_model import TinyModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedConfig

PAD, EOS, UNKNOWN = SPECIAL = ("<pad>", "<eos>", "<unk>")
VISION = "qwen2_5_vl"
ARCHITECTURES = ("qwen2", "llama", VISION)


def write_model(shape: TinyModel, alphabet: Sequence[str] | None, out: Path) -> None:
    """Weights, configuration and tokenizer to `out`; deterministic in `shape`.

    `alphabet`: the characters and longer texts that are one token each; None: one token a byte, so
    that any text fits.
    """
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        PreTrainedTokenizerFast,
    )
    from transformers.utils import logging

    from env.prepare import vision_model

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_bytes() if alphabet is None else _characters(alphabet),
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=shape.max_length,
        clean_up_tokenization_spaces=False,
    )
    kind: Any
    if shape.architecture == VISION:
        vision_model.prepare(tokenizer, out)
        config, kind = vision_model.config(shape, tokenizer), AutoModelForImageTextToText
    else:
        config, kind = tiny_config(shape, len(tokenizer)), AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        model = kind.from_config(config)
    logging.disable_progress_bar()
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)


def tiny_config(shape: TinyModel, vocabulary: int) -> PreTrainedConfig:
    from transformers import AutoConfig

    return AutoConfig.for_model(
        shape.architecture,
        vocab_size=vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=3 * shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(EOS),
        pad_token_id=SPECIAL.index(PAD),
    )


def _characters(alphabet: Sequence[str]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    # transformers splits texts as the architecture's own tokenizer does, which has other spaces.
    # Added tokens are found before that.
    added = [token for token in alphabet if len(token) > 1 or token.isspace()]
    tokens = [*SPECIAL, *(token for token in alphabet if token not in added)]
    # Byte-pair encoding with no pairs is one token a character.
    tokenizer = Tokenizer(
        models.BPE({token: row for row, token in enumerate(tokens)}, [], unk_token=UNKNOWN)
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer


def _bytes() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: row for row, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
