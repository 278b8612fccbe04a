"""Gathers, casts and packs the policy's weights for GPU-to-GPU updates, bucket by bucket.

Each bucket is gathered if the weights are sharded, and cast to the engines' precision. Its tensors
lie end to end, without gaps, as vLLM's receivers unpack them. For NCCL, vLLM's sender packs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainer.cluster import memory_estimate
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
        """Bytes of the largest bucket."""
        self.count = 0
        """Number of buckets."""

    def buckets(self) -> list[BucketSpec]:
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
        found = shared_memory.buckets(
            shared_memory.laid_out(kinds), memory_estimate.GPU_BUCKET_BYTES
        )
        self.count = len(found)
        self.largest = max(sum(map(shared_memory.size_of, bucket)) for bucket in found)
        return found

    @contextmanager
    def whole(self, bucket: BucketSpec) -> Iterator[dict[str, Tensor]]:
        """Yield the whole tensors of a bucket, on each rank's device.

        All ranks call this at the same time.
        """
        tensors = self._model.state_dict(keep_vars=True)
        some = {name: tensors[name] for entry in bucket for name in self._sources[entry.name]}
        kinds = {entry.name: getattr(torch, entry.dtype) for entry in bucket}
        with zero3.whole(some.values()), torch.no_grad():
            merged = lora.merged(self._model, some)
            yield {name: tensor.to(kinds[name]) for name, tensor in merged.items()}


def pack(tensors: dict[str, Tensor], buffer: Tensor) -> None:
    """Copy the bytes of `tensors`, one after the other, to the beginning of `buffer` [bytes]."""
    end = 0
    for tensor in tensors.values():
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        buffer[end : end + flat.numel()].copy_(flat)
        end += flat.numel()
