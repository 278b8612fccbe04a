"""Tokenisers of the kinds that models have: SentencePiece's and byte-level, some with BOS."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>")


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells one family's tokeniser from another's."""

    end: str
    bos: str | None = None
    pad: str | None = None
    adds_bos: bool = False
    adds_end: bool = False
    sentence_piece: bool = False
    strips_space: bool = False
    """The decoder leaves out the space before the first word, as Llama 2's does."""
    others: Sequence[str] = ()


KINDS = {
    "llama2": Kind("</s>", "<s>", "<unk>", adds_bos=True, sentence_piece=True, strips_space=True),
    "llama3": Kind(
        "<|eot_id|>",
        "<|begin_of_text|>",
        "<|finetune_right_pad_id|>",
        adds_bos=True,
        others=["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"],
    ),
    "qwen": Kind("<|im_end|>", None, "<|endoftext|>", others=["<|im_start|>"]),
    "gemma": Kind(
        "<eos>",
        "<bos>",
        "<pad>",
        adds_bos=True,
        sentence_piece=True,
        others=["<start_of_turn>", "<end_of_turn>"],
    ),
    "gpt2": Kind("<|endoftext|>", "<|endoftext|>", "<|endoftext|>"),
    "deepseek": Kind(
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        adds_bos=True,
        others=["<｜User｜>", "<｜Assistant｜>"],
    ),
    "ending": Kind("</s>", "<s>", adds_bos=True, adds_end=True),
}


def made(name: str, template: str | None = None) -> Any:
    """Return the tokeniser of a kind, with the tags as special tokens too."""
    kind = KINDS[name]
    plain = _sentence_piece(kind) if kind.sentence_piece else _byte_level()
    own = [token for token in (kind.bos, kind.end, kind.pad) if token]
    special = list(dict.fromkeys([*own, *kind.others, *TAGS]))
    plain.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    before = f"{kind.bos} " if kind.adds_bos else ""
    after = f" {kind.end}" if kind.adds_end else ""
    ids = [(one, plain.token_to_id(one)) for one in own]
    plain.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}", pair="$A $B", special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        bos_token=kind.bos,
        eos_token=kind.end,
        pad_token=kind.pad,
        unk_token="<unk>" if kind.sentence_piece else None,
        clean_up_tokenization_spaces=True,
        chat_template=template,
    )


def _byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: row for row, token in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return plain


def _sentence_piece(kind: Kind) -> Tokenizer:
    letters = sorted({*string.printable, "▁"} - set(string.whitespace))
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("▁", letter) for letter in string.ascii_letters]
    tokens += ["".join(pair) for pair in merges]
    plain = Tokenizer(
        models.BPE(
            {token: row for row, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind.strips_space:
        plain.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        plain.decoder = decoders.Sequence([*ends, decoders.Strip(" ", 1, 0)])
    else:
        plain.normalizer, plain.decoder = spaces, decoders.Sequence(ends)
    return plain
