"""New weights for a dense model of vLLM on CPUs: one copy as they come, packed before their use.

vLLM keeps the weights of a linear layer as oneDNN's kernels want them, and its own way to new ones
makes that anew while they come: three copies, each into memory that is found page by page, at a
fifth of memcpy's speed. Here the weights as they are in a checkpoint stay in memory besides; they
take one copy, for which alone the policy waits.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm import _custom_ops
from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

PRIMITIVES = 32
"""Sizes of batches for which oneDNN keeps a kernel: vLLM's own number."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """A layer that multiplies by weights in oneDNN's form."""

    layer: nn.Module
    handler: Any
    plain: nn.Parameter
    """[out, in], as in a checkpoint."""

    def pack(self) -> None:
        """Into the handler that there is: what was compiled goes on with it."""
        fresh = _custom_ops.create_onednn_mm(self.plain.detach().t(), PRIMITIVES)
        pointer, new = self.handler.handler_tensor, fresh.handler_tensor
        old = pointer.clone()
        pointer.copy_(new)
        new.copy_(old)  # freed with `fresh`


class DenseModel:
    """A model all of whose weights are taken as they come."""

    def __init__(self, packed: list[_Packed]) -> None:
        self._packed = packed
        self._kernels: dict[nn.Module, Any] = {}

    @classmethod
    def of(cls, model: nn.Module) -> DenseModel | None:
        """None where a layer of `model` does anything else with its weights."""
        packed = []
        for layer in model.modules():
            if not _is_plain(layer):
                return None
            if not _multiplies(layer):
                continue
            handler = _handler(layer)
            if handler is None:
                return None
            packed.append(_Packed(layer, handler, _plain_weight(layer)))
        return cls(packed)

    def open(self) -> None:
        """Let vLLM's loaders find weights as a checkpoint has them."""
        for one in self._packed:
            self._kernels[one.layer] = one.layer.weight
            _put(one.layer, one.plain)

    def close(self) -> None:
        for one in self._packed:
            _put(one.layer, self._kernels.pop(one.layer))

    @torch.no_grad()
    def pack(self) -> None:
        for one in self._packed:
            one.pack()


def _is_plain(layer: nn.Module) -> bool:
    if is_deferred_attention_layer(layer):
        return type(layer) is Attention and getattr(layer, "quant_method", None) is None
    method = getattr(layer, "quant_method", None)
    return method is None or type(method) in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


def _multiplies(layer: nn.Module) -> bool:
    """An embedding has a packed form, too, which nothing reads unless it is a head."""
    method = type(getattr(layer, "quant_method", None))
    return method is UnquantizedLinearMethod or isinstance(layer, ParallelLMHead)


def _handler(layer: Any) -> Any:
    """oneDNN's, which vLLM holds in the function that it has made for the layer."""
    function = getattr(layer, "cpu_linear", None)
    if not inspect.isfunction(function):
        return None
    return inspect.getclosurevars(function).nonlocals.get("handler")


def _plain_weight(layer: Any) -> Any:
    """The layer's own where it has one; else room for it, as it was when vLLM built the layer."""
    if layer.weight.numel():
        return layer.weight
    parameters, _ = get_layerwise_info(layer).restore_metadata
    return materialize_meta_tensor(restore_layer_refs(parameters["weight"], layer))


def _put(layer: nn.Module, weight: Tensor) -> None:
    if layer.weight is not weight:
        del layer.weight
        layer.register_parameter("weight", weight)  # type: ignore[arg-type]
