"""Texts to vectors of length 1, by a sentence-embedding model in a directory."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import xxhash

from env import model_code
from env.model_code import MORE_THAN_TENSORS
from env.retrieval.files import IndexFault, checksum

logger = logging.getLogger(__name__)

POOLED = {
    **{"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"},
    **{"pooling_mode_mean": "mean", "pooling_mode_cls": "cls"},
}
"""What sentence-transformers calls them, in older files and in newer ones."""
APPLIED = frozenset({"Transformer", "Pooling", "Normalize"})
"""Modules of sentence-transformers that are applied here; every vector is normalised."""
MAX_TOKENS = 256
PREFIXES = {
    "e5": ("query: ", "passage: "),
    "bge": ("Represent this sentence for searching relevant passages: ", ""),
}
"""What these models were trained with before a query and before a passage, as in Search-R1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    model: str
    """A directory in Hugging Face's layout."""
    pooling: str
    query_prefix: str
    passage_prefix: str
    max_tokens: int = MAX_TOKENS
    weights: str = ""
    """Checksum of the model's weights."""


def settings_of(
    model: Path, *, pooling: str | None, query_prefix: str | None, passage_prefix: str | None
) -> EncoderSettings:
    """With what `model` says where nothing is given. Raises IndexFault."""
    check_modules(model)
    of_query, of_passage = _prefixes(model.resolve())
    return EncoderSettings(
        model=str(model.resolve()),
        pooling=pooling or _pooling(model),
        query_prefix=of_query if query_prefix is None else query_prefix,
        passage_prefix=of_passage if passage_prefix is None else passage_prefix,
        weights=weights_checksum(model),
    )


def weights_checksum(model: Path) -> str:
    """Raises IndexFault if the directory holds no weights."""
    files = sorted(model.glob("*.safetensors")) or sorted(model.glob("pytorch_model*.bin"))
    if not (model / "config.json").is_file() or not files:
        raise IndexFault(
            f"--model {model}: no model there; wanted is a directory with config.json, a tokenizer "
            "and model.safetensors, such as `hf download intfloat/e5-base-v2 --local-dir DIR` makes"
        )
    return xxhash.xxh3_128_hexdigest("".join(map(checksum, files)).encode())


def check_modules(model: Path) -> None:
    """Raise IndexFault for a model whose vectors go through more than is applied here: Dense, …"""
    try:
        listed = json.loads((model / "modules.json").read_text())
        names = [str(module["type"]).rpartition(".")[2] for module in listed]
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexFault(f"--model {model}: modules.json cannot be read: {error!r}") from error
    if others := [name for name in names if name not in APPLIED]:
        raise IndexFault(
            f"--model {model}: modules.json has {', '.join(others)}, and only "
            f"{', '.join(sorted(APPLIED))} are applied here: its vectors would be wrong. "
            "Give another model, such as intfloat/e5-base-v2"
        )


class Encoder:
    def __init__(self, settings: EncoderSettings, *, trust_remote_code: bool = False) -> None:
        """`trust_remote_code`: run code that the model brings along. Raises IndexFault."""
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        logging.getLogger("httpx").setLevel(logging.WARNING)
        transformers_logging.disable_progress_bar()
        check_modules(Path(settings.model))
        self._settings = settings
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        kind = torch.float16 if self._device == "cuda" else torch.float32
        code = model_code.code_of(Path(settings.model))
        if code and trust_remote_code:
            logger.info("%s runs %s.", model_code.FLAG, ", ".join(code))
        how = {"local_files_only": True, "trust_remote_code": trust_remote_code}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(settings.model, **how)
            model = AutoModel.from_pretrained(settings.model, dtype=kind, **how)
        except (OSError, ValueError, KeyError, UnpicklingError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            if model_code.NEEDED in str(error):
                first = model_code.refusal(code)
            elif isinstance(error, UnpicklingError):  # its own remedy is to run what the file says
                first = MORE_THAN_TENSORS
            raise IndexFault(f"--model {settings.model}: cannot be loaded: {first}") from error
        self._model: Any = model.to(self._device).eval()
        self._max_tokens = min(settings.max_tokens, _positions(model))

    @property
    def width(self) -> int:
        return int(self._model.config.hidden_size)

    def queries(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        return self._encode([self._settings.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        return self._encode([self._settings.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        import torch

        tokens = self._tokenizer(
            list(texts),
            max_length=self._max_tokens,
            padding=True,
            truncation=True,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            hidden = self._model(**tokens).last_hidden_state.float()
            if self._settings.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                mask = tokens["attention_mask"][..., None]
                pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            vectors = torch.nn.functional.normalize(pooled, dim=-1)
        return np.ascontiguousarray(vectors.cpu().numpy(), np.float32)


def _prefixes(model: Path) -> tuple[str, str]:
    """By the name of the directory, or of the model in the hub's cache."""
    in_cache = [part for part in model.parts if part.startswith("models--")]
    words = re.split(r"[^a-z0-9]+", (in_cache[-1] if in_cache else model.name).lower())
    return next((pair for name, pair in PREFIXES.items() if name in words), ("", ""))


def _pooling(model: Path) -> str:
    """As sentence-transformers saved it beside the model; else the mean, as Search-R1 does.

    Raises IndexFault for another pooling, such as that of the last token.
    """
    try:
        saved = json.loads((model / "1_Pooling" / "config.json").read_text())
    except (OSError, ValueError):
        return "mean"
    wanted = {name for name, on in saved.items() if name.startswith("pooling_mode_") and on is True}
    wanted |= {f"pooling_mode_{saved['pooling_mode']}"} if "pooling_mode" in saved else set()
    known = {POOLED.get(name) for name in wanted} or {"mean"}
    if len(known) > 1 or None in known:
        names = ", ".join(sorted(name.removeprefix("pooling_mode_") for name in wanted))
        raise IndexFault(
            f"--model {model}: was trained with the pooling {names}, and mean and cls can be had "
            "here: give another model, such as intfloat/e5-base-v2"
        )
    return str(*known)


def _positions(model: Any) -> int:
    return int(getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS)
