"""Inputs of a model of images and text: embeddings with the images in their places, and positions.

The model's own forward pass looks for the images' places by their token, which a policy may also
write. Here the places come with the images, so such a token is a token like any other.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import cached_file

from env.images.types import PlacedImage
from trainer.models import zero3
from trainer.models.image_processor import ImageProcessor
from trainer.types import IntArray

PROCESSOR_FILES = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)
Placed = Sequence[PlacedImage]


class Vision:
    """The part of a model that sees images."""

    def __init__(self, model: nn.Module, processor: ImageProcessor) -> None:
        """`model`: has a module with `visual` and `language_model`."""
        self._model: Any = next(part for part in model.modules() if _sees(part))
        self._processor = processor

    @property
    def unit(self) -> int:
        return self._processor.unit

    def embeddings(self, tokens: Tensor, images: Sequence[Placed]) -> Tensor:
        """Return [B, T, H] embeddings of `tokens` [B, T], with each row's images in their places.

        `start` of an image is its column.
        """
        embedded: Tensor = self._model.get_input_embeddings()(tokens)
        shown = [placed.image for row in images for placed in row]
        if not shown:
            return embedded + self._nothing() if self._must_run() else embedded
        patches, grids = self._processor.patches(shown)
        features = self._features(torch.from_numpy(patches), torch.from_numpy(grids))
        places = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, placed in enumerate(images):
            for one in placed:
                places[row, one.start : one.start + one.image.tokens] = True
        mask = places.to(embedded.device).unsqueeze(-1)
        return embedded.masked_scatter(mask, features.to(embedded.dtype))

    def _features(self, patches: Tensor, grids: Tensor) -> Tensor:
        visual = self._model.visual
        device = self._model.get_input_embeddings().weight.device
        dtype: torch.dtype = visual.dtype
        seen = visual(patches.to(device, dtype), grid_thw=grids.to(device))
        features: Tensor = seen.pooler_output
        return features

    def _must_run(self) -> bool:
        """Return whether the encoder must run without images, too.

        Ranks gather sharded weights, and reduce gradients, all together: a rank whose samples have
        no image would leave out the encoder's.
        """
        weight = next(self._model.visual.parameters())
        return zero3.is_sharded(weight) or (torch.is_grad_enabled() and weight.requires_grad)

    def _nothing(self) -> Tensor:
        """Return 0 from a pass of the encoder over an empty image of one token."""
        config: Any = self._model.visual.config
        channels = getattr(config, "in_channels", 3)
        size = channels * config.temporal_patch_size * config.patch_size**2
        edge = config.spatial_merge_size
        grid = torch.tensor([[1, edge, edge]])
        return self._features(torch.zeros(edge * edge, size), grid).sum() * 0.0

    def positions(self, shape: tuple[int, int], images: Sequence[Placed]) -> IntArray:
        """Return [3, B, T] positions of tokens that begin in column 0."""
        rows, width = shape
        found = np.zeros((3, rows, width), dtype=np.int64)
        for row, placed in enumerate(images):
            found[:, row], _ = positions(width, placed, self.unit)
        return found


def positions(length: int, images: Placed, unit: int) -> tuple[IntArray, int]:
    """Return [3, length] time, row and column of each token, and the position of the next token.

    M-RoPE (Wang et al. 2024, section 2.1): the three are equal for text; an image's tokens have one
    time, and rows and columns from there; what follows begins one after the largest of them.
    """
    found = np.zeros((3, length), dtype=np.int64)
    at = position = 0
    for placed in images:
        size = placed.start - at
        found[:, at : placed.start] = position + np.arange(size)
        position += size
        height, width = (edge // unit for edge in placed.image.pixels.shape[:2])
        at = placed.start + height * width
        found[0, placed.start : at] = position
        found[1, placed.start : at] = position + np.repeat(np.arange(height), width)
        found[2, placed.start : at] = position + np.tile(np.arange(width), height)
        position += max(height, width)
    found[:, at:] = position + np.arange(length - at)
    return found, position + length - at


def vision_of(model: nn.Module, source: str) -> Vision | None:
    """Return what sees images in a model; None for a model of text. `source`: its directory."""
    if not any(_sees(part) for part in model.modules()):
        return None
    return Vision(model, ImageProcessor(source))


def freeze(model: nn.Module) -> None:
    """Take the visual encoder out of training. A model of text stays as it is."""
    for part in model.modules():
        if _sees(part):
            part.visual.requires_grad_(False)


def processor_files(model: nn.Module, source: str) -> list[Path]:
    """Return the files of the image processor in `source`; none for a model of text."""
    if not any(_sees(part) for part in model.modules()):
        return []
    found = (
        cached_file(source, name, _raise_exceptions_for_missing_entries=False)
        for name in PROCESSOR_FILES
    )
    return [Path(path) for path in found if path]


class TokenizerWithFiles:
    """A tokeniser that is saved together with the files of an image processor."""

    def __init__(self, tokenizer: Any, files: Sequence[Path]) -> None:
        self._tokenizer = tokenizer
        self._files = files

    def save_pretrained(self, directory: Path) -> None:
        self._tokenizer.save_pretrained(directory)
        for file in self._files:
            shutil.copyfile(file, directory / file.name)


def _sees(part: nn.Module) -> bool:
    return hasattr(part, "visual") and hasattr(part, "language_model")
