"""A model's directory, whole as far as its files tell; to make a real one takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

TENSOR = {"lm_head.weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}}


def write_files(directory: Path, **config: object) -> Path:
    """`config`: beside, or instead of, the type of the model."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    tokenizer = Tokenizer(WordLevel({"=": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    header = json.dumps(TENSOR).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(32)
    (directory / "model.safetensors").write_bytes(tensors)
    return directory
