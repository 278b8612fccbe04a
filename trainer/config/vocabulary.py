"""Whether a model's embedding has a row for each token of a tokeniser, by their JSON files.

Torch-free, and without the library of the tokeniser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEDIA = (
    *("image_token", "boi_token", "eoi_token", "video_token"),
    *("audio_token", "boa_token", "eoa_token"),
)
"""Keys of tokenizer_config.json: tokens that stand for what is no text. Gemma 3's models of text
have one of them without a row in the embedding."""
SHOWN = 3
"""Tokens that a message names."""


def unreadable_tokens(tokenizer: Path, model: Path) -> str | None:
    """Return a sentence if a tokeniser has tokens that a model's embedding lacks, else None.

    A larger embedding is right, because many are filled up to a round number of rows. None, too,
    where the JSON files of the two directories do not say how large both are.
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
    config = _read(model / "config.json")
    text = config.get("text_config")
    rows = (text if isinstance(text, dict) else config).get("vocab_size")
    return rows if isinstance(rows, int) else None


def _tokens(directory: Path) -> dict[str, int]:
    """Return the tokens that a text can have, with their ids; empty if no JSON file has them."""
    own = _read(directory / "tokenizer_config.json")
    try:
        found = _listed(directory, own)
    except (AttributeError, KeyError, TypeError, ValueError):  # files of another layout
        return {}
    media = _media(own)
    return {token: number for token, number in found.items() if token not in media}


def _listed(directory: Path, own: Mapping[str, Any]) -> dict[str, int]:
    whole = _read(directory / "tokenizer.json")
    vocabulary = whole["model"]["vocab"] if whole else _read(directory / "vocab.json")
    if isinstance(vocabulary, list):  # a unigram's: rows of token and score, by id
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    found: dict[str, int] = dict(vocabulary) | _read(directory / "added_tokens.json")
    found |= {row["content"]: row["id"] for row in whole.get("added_tokens") or ()}
    decoder = own.get("added_tokens_decoder") or {}
    return found | {row["content"]: int(number) for number, row in decoder.items()}


def _media(own: Mapping[str, Any]) -> set[str]:
    extra = own.get("extra_special_tokens")
    places = [own, extra] if isinstance(extra, dict) else [own]
    named = [place.get(key) for place in places for key in MEDIA]
    return {text for token in named if isinstance(text := _text(token), str)}


def _text(token: Any) -> Any:
    """Return the text of a special token, which may be an object."""
    return token.get("content") if isinstance(token, dict) else token


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
