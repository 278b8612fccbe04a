"""Images as Qwen2.5-VL takes them: sizes and patches of transformers' image processor.

The processor with Pillow is used everywhere: the other one needs torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from env.images.types import Image
from trainer.models.hub import unfit_model_errors
from trainer.types import FloatArray, IntArray


class ImageProcessor:
    def __init__(self, model: str, max_pixels: int | None = None) -> None:
        """`max_pixels`: limit of an image after its resize; 0 or None: the model's own."""
        with unfit_model_errors(model):
            self._own = Qwen2VLImageProcessorPil.from_pretrained(model)
            own = self._own.size["longest_edge"]
            self._most = min(max_pixels or own, own)
            self._least = min(self._own.size["shortest_edge"], self._most)
        self.unit: int = self._own.patch_size * self._own.merge_size
        """Pixels of the edge of one token's square."""

    def fit(self, picture: Any) -> Image:
        """Return Pillow's RGB image at the size that the model takes.

        Raises ValueError for a picture that is 200 times as long as wide, or more.
        """
        width, height = picture.size
        height, width = smart_resize(height, width, self.unit, self._least, self._most)
        resized = picture.resize((width, height), self._own.resample)
        return Image(np.asarray(resized), height * width // self.unit**2)

    def patches(self, images: Sequence[Image]) -> tuple[FloatArray, IntArray]:
        """Return [P, D] normalised patches of all images, and [N, 3] each image's grid of them."""
        pixels = [image.pixels for image in images]
        made = self._own(
            pixels, do_resize=False, return_tensors="np", input_data_format="channels_last"
        )
        return made["pixel_values"].astype(np.float32), made["image_grid_thw"].astype(np.int64)
