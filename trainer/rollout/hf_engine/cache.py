"""The keys and values of a decoding batch whose rows change.

Rows are aligned on the right: every row's newest token is in the last column, so one write serves
all rows. The caller masks the columns before a row's first token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

SPARE = 32
"""Fewest free columns of a buffer after it has grown."""


class RowsLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values [B, heads, T, size], in buffers with room for more columns.

    DynamicLayer copies everything for each new token, this layer only when a buffer is full.
    """

    keys: Tensor
    values: Tensor
    _key_buffer: Tensor
    _value_buffer: Tensor

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            self._hold(keys, values)
            return self.keys, self.values
        start, end = self.keys.shape[-2], self.keys.shape[-2] + keys.shape[-2]
        if end > self._key_buffer.shape[-2]:
            self._hold(self.keys, self.values, end)
        self._key_buffer[..., start:end, :] = keys
        self._value_buffer[..., start:end, :] = values
        self.keys = self._key_buffer[..., :end, :]
        self.values = self._value_buffer[..., :end, :]
        return self.keys, self.values

    def replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace keys and values by the results of `change`."""
        self._hold(change(self.keys), change(self.values))

    def _hold(self, keys: Tensor, values: Tensor, at_least: int = 0) -> None:
        self._key_buffer, self.keys = _with_room(keys, at_least)
        self._value_buffer, self.values = _with_room(values, at_least)


class RowsCache(Cache):  # type: ignore[misc]
    """A transformers cache of RowsLayers.

    A layer with a sliding window keeps all its columns here; the model's mask cuts the window.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RowsLayer)

    def keep(self, rows: Tensor, width: int) -> None:
        """Keep the last `width` columns of `rows`, in this order. A row may occur twice."""
        for layer in self.layers:
            layer.replace(lambda content: content[..., -width:, :].index_select(0, rows))

    def join(self, other: RowsCache) -> None:
        """Append the rows of `other`. The narrower cache gets empty columns."""
        width = max(self.get_seq_length(), other.get_seq_length())
        for layer, added in zip(self.layers, other.layers, strict=True):
            keys = torch.cat([_widened(layer.keys, width), _widened(added.keys, width)])
            values = torch.cat([_widened(layer.values, width), _widened(added.values, width)])
            layer._hold(keys, values)


def holds(config: Any) -> bool:
    """Return whether a model with this configuration has no state but keys and values.

    A recurrent state cannot be aligned on the right, because it has no columns.
    """
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    return all(type(layer) in known for layer in DynamicCache(config=config).layers)


def _with_room(content: Tensor, at_least: int) -> tuple[Tensor, Tensor]:
    """Return a buffer that begins with `content`, and a view of that beginning."""
    width = content.shape[-2]
    capacity = max(width, at_least) + max(SPARE, width // 2)
    buffer = content.new_empty((*content.shape[:-2], capacity, content.shape[-1]))
    view = buffer[..., :width, :]
    view.copy_(content)
    return buffer, view


def _widened(content: Tensor, width: int) -> Tensor:
    return functional.pad(content, (0, 0, width - content.shape[-2], 0))
