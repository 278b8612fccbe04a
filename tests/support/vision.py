"""A tiny Qwen2.5-VL, pictures for it, and sequences with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from env.images.types import Image, PlacedImage
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.ragged import sequences_of
from trainer.models.image_processor import ImageProcessor
from trainer.types import Sequences

HAS_TORCHVISION = find_spec("torchvision") is not None
SHAPE = TinyModel(architecture="qwen2_5_vl", hidden_size=32, layers=2, heads=2, max_length=256)


def picture(width: int, height: int, seed: int = 0) -> PIL.Image.Image:
    """Return noise."""
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return PIL.Image.fromarray(drawn)


@dataclass(frozen=True)
class Seeing:
    """The model and its token ids."""

    model: Path
    processor: ImageProcessor
    ids: dict[str, int]

    def tokens(self, *parts: str | Image) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """Return tokens of texts (a token a character) and images, and where the images are."""
        tokens: list[int] = []
        placed = []
        for part in parts:
            if isinstance(part, str):
                tokens += [self.ids[character] for character in part]
                continue
            tokens.append(self.ids["<|vision_start|>"])
            placed.append(PlacedImage(len(tokens), part))
            tokens += [self.ids["<|image_pad|>"]] * part.tokens
            tokens.append(self.ids["<|vision_end|>"])
        return tokens, tuple(placed)


def tiny(root: Path, shape: TinyModel = SHAPE) -> Seeing:
    from transformers import AutoTokenizer

    model = root / "model"
    write_model(shape, "0123456789ab?", model)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    return Seeing(model, ImageProcessor(str(model)), tokenizer.get_vocab())


def sequences(rows: Sequence[tuple[list[int], tuple[PlacedImage, ...]]], actions: int) -> Sequences:
    """Return rows whose last `actions` tokens the policy chose."""
    lengths = np.array([len(tokens) for tokens, _ in rows])
    tokens = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for row, (content, _) in enumerate(rows):
        tokens[row, : len(content)] = content
    columns = np.arange(tokens.shape[1])
    ends = lengths[:, None]
    mask = (columns >= ends - actions) & (columns < ends)
    return sequences_of(tokens, lengths, mask, images=tuple(placed for _, placed in rows))
