"""Whether a model's embedding has a row for each token of a tokeniser, by their files.

Torch-free, and without the libraries of the tokenisers: an image may lack SentencePiece's.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config.json_files import json_object

MEDIA = (
    *("image_token", "boi_token", "eoi_token", "video_token"),
    *("audio_token", "boa_token", "eoa_token"),
)
"""Keys of tokenizer_config.json: tokens that stand for what is not text. Gemma 3's models of text
have one of them without a row in the embedding."""
ALWAYS = ("bos_token", "eos_token", "pad_token")
"""Keys of tokens that transformers adds to a vocabulary that lacks them, and that a run uses."""
PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "*.tiktoken")
"""Files of SentencePiece or of tiktoken; the first of them has either."""
RANKS = re.compile(rb"(?:[A-Za-z0-9+/=]+ \d+\s+)+")
"""A file of tiktoken: a token in base64 and its id on each line."""
TEXT = b"\x0a"
"""In protobuf: a field 1 of bytes or text."""
SHOWN = 3
"""Tokens that a message names."""


def unreadable_tokens(tokenizer: Path, model: Path) -> str | None:
    """Return a sentence if a tokeniser has tokens that a model's embedding lacks, else None.

    A larger embedding is right, because many are filled up to a round number of rows. None, too,
    where the files of the two directories do not say how large both are.
    """
    rows = _embedding_rows(model)
    if rows is None:
        return None
    beyond = [token for token, number in _tokens(tokenizer).items() if number >= rows]
    if not beyond:
        return None
    some = ", ".join(map(repr, beyond[:SHOWN])) + (", …" if len(beyond) > SHOWN else "")
    tokens = "1 token" if len(beyond) == 1 else f"{len(beyond)} tokens"
    return (
        f"the tokeniser in {tokenizer} has {tokens} without a row in the embedding of "
        f"{model}, which has {rows} (vocab_size): {some}. Give the tokeniser that the model was "
        "trained with, or resize the embedding (resize_token_embeddings) and save the model again"
    )


def _embedding_rows(model: Path) -> int | None:
    config = json_object(model / "config.json")
    text = config.get("text_config")
    rows = (text if isinstance(text, dict) else config).get("vocab_size")
    return rows if isinstance(rows, int) else None


def _tokens(directory: Path) -> dict[str, int]:
    """Return the tokens that a text can have, with their ids; empty if no file has them."""
    own = json_object(directory / "tokenizer_config.json")
    try:
        found = _listed(directory, own)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # of another layout
        return {}
    media = _media(own)
    return {token: number for token, number in found.items() if token not in media}


def _listed(directory: Path, own: Mapping[str, Any]) -> dict[str, int]:
    whole = json_object(directory / "tokenizer.json")
    vocabulary = whole["model"]["vocab"] if whole else json_object(directory / "vocab.json")
    if not whole and not vocabulary:
        vocabulary = _of_tekken(directory) or _of_pieces(directory)
    if isinstance(vocabulary, list):  # a unigram's: rows of token and score, by id
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    found: dict[str, int] = dict(vocabulary) | json_object(directory / "added_tokens.json")
    found |= {row["content"]: row["id"] for row in whole.get("added_tokens") or ()}
    decoder = own.get("added_tokens_decoder") or {}
    found |= {row["content"]: int(number) for number, row in decoder.items()}
    named = {**json_object(directory / "special_tokens_map.json"), **own}
    always = dict.fromkeys(text for key in ALWAYS if isinstance(text := _text(named.get(key)), str))
    added = [token for token in always if token and token not in found]
    return found | {token: len(found) + place for place, token in enumerate(added)} if found else {}


def _of_tekken(directory: Path) -> dict[str, int]:
    """Return the tokens of Mistral's own file, whose ids begin behind those that are special."""
    content = json_object(directory / "tekken.json")
    if not content:
        return {}
    special = content["config"]["default_num_special_tokens"]
    rows = content["vocab"][: content["config"]["default_vocab_size"] - special]
    return {row["token_str"] or row["token_bytes"]: special + row["rank"] for row in rows}


def _of_pieces(directory: Path) -> dict[str, int]:
    """Return the tokens of the first file of SentencePiece or tiktoken."""
    file = next((one for name in PIECES for one in sorted(directory.glob(name))), None)
    try:
        content = file.read_bytes() if file else b""
    except OSError:
        return {}
    if RANKS.fullmatch(content + b"\n"):
        rows = (line.split() for line in content.splitlines() if line.strip())
        return {_of_base64(token): int(rank) for token, rank in rows}
    return {text.decode(): number for number, text in enumerate(_pieces(content))}


def _of_base64(token: bytes) -> str:
    try:
        return base64.b64decode(token).decode()
    except UnicodeDecodeError:  # a part of a character
        return token.decode()


def _pieces(model: bytes) -> Iterator[bytes]:
    """Yield the pieces of a model of SentencePiece, in the order of their ids.

    It is a message of protobuf (sentencepiece_model.proto) that begins with them: each is a field 1
    whose own field 1, the first, is its text. Raises IndexError if the model is cut.
    """
    at = 0
    while model[at : at + 1] == TEXT:
        length, start = _number(model, at + 1)
        at = start + length
        if model[start] != TEXT[0] or at > len(model):
            raise IndexError("this is not a piece")
        size, start = _number(model, start + 1)
        yield model[start : start + size]


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of protobuf, and the place behind it."""
    value, at = message[at], at + 1
    shift = 7
    while value >> shift:  # the highest bit: seven more bits follow
        value, at = (value & ((1 << shift) - 1)) | message[at] << shift, at + 1
        shift += 7
    return value, at


def _media(own: Mapping[str, Any]) -> set[str]:
    extra = own.get("extra_special_tokens")
    places = [own, extra] if isinstance(extra, dict) else [own]
    named = [place.get(key) for place in places for key in MEDIA]
    return {text for token in named if isinstance(text := _text(token), str)}


def _text(token: Any) -> Any:
    """Return the text of a special token, which may be an object."""
    return token.get("content") if isinstance(token, dict) else token
