"""The policy's weights as engines know them, bucket by bucket.

Each bucket is gathered if the weights are sharded, and cast to the engines' precision. Its tensors
lie end to end, without gaps, as vLLM's receivers unpack them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainer.models import lora, zero3
from trainer.weight_sync import shared_memory
from trainer.weight_sync.messages import BucketSpec


class WeightSource:
    """A model's weights as engines know them, some at a time."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None) -> None:
        """`dtype`: type that the engines compute with; None: each tensor keeps its type.

        Buffers always keep theirs.
        """
        self._model = model
        self._dtype = dtype
        self._sources: dict[str, tuple[str, ...]] = {}
        self.largest = 0
        """Bytes of the largest part."""

    def parts(self) -> list[BucketSpec]:
        """Return the model's buckets, which are the same on every rank."""
        tensors = self._model.state_dict(keep_vars=True)
        self._sources = lora.sources(self._model, tensors)
        kinds = {}
        for name, (source, *_) in self._sources.items():
            tensor = tensors[source]
            cast = self._dtype if isinstance(tensor, nn.Parameter) else None
            kinds[name] = (cast or tensor.dtype, zero3.shape_of(tensor))
        # Without gaps a wider type must not follow a narrower one: it would begin unaligned.
        kinds = dict(sorted(kinds.items(), key=lambda one: -one[1][0].itemsize))
        found = shared_memory.parts(shared_memory.laid_out(kinds), shared_memory.PART_BYTES)
        self.largest = max(sum(map(shared_memory.size_of, part)) for part in found)
        return found

    @contextmanager
    def whole(self, part: BucketSpec) -> Iterator[dict[str, Tensor]]:
        """Yield the whole tensors of a bucket, on each rank's device.

        All ranks call this at the same time.
        """
        tensors = self._model.state_dict(keep_vars=True)
        some = {name: tensors[name] for entry in part for name in self._sources[entry.name]}
        kinds = {entry.name: getattr(torch, entry.dtype) for entry in part}
        with zero3.whole(some.values()), torch.no_grad():
            merged = lora.merged(self._model, some)
            yield {name: tensor.to(kinds[name]) for name, tensor in merged.items()}
