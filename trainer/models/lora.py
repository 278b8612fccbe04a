"""Low-rank adapters: W x + (α / r) B A dropout(x), with W frozen (Hu et al. 2022, equation 3)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from trainer.config.options.training import LoRASettings
from trainer.models import zero3
from trainer.types import UnfitModelError

log = logging.getLogger(__name__)

ALL_LINEAR = "all-linear"
Linear = Any
"""torch's linear layer, or transformers' Conv1D, without types: its weight is [in, out]."""
Shapes = Mapping[str, Sequence[int]]
"""Shapes of tensors, by name."""


class Adapted(nn.Module):
    """A frozen linear layer with its adapter, whose output is zero until the first update."""

    def __init__(self, base: Linear, settings: LoRASettings, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.dropout = nn.Dropout(settings.dropout)
        self.scale = settings.alpha / settings.rank
        wide, out = _shape(base)
        bound = 1 / math.sqrt(wide)
        drawn = torch.empty(settings.rank, wide).uniform_(-bound, bound, generator=generator)
        self.lora_a = nn.Parameter(drawn.to(base.weight))
        self.lora_b = nn.Parameter(base.weight.new_zeros(out, settings.rank))

    @property
    def weight(self) -> Tensor:
        """The weight with the adapter, for a model that reads it and does not call the layer."""
        together: Tensor = self.base.weight + self._difference(self.lora_a, self.lora_b)
        return together

    @property
    def bias(self) -> Tensor | None:
        own: Tensor | None = self.base.bias
        return own

    def forward(self, inputs: Tensor) -> Tensor:
        narrow = functional.linear(self.dropout(inputs), self.lora_a)
        plain: Tensor = self.base(inputs)
        return plain + self.scale * functional.linear(narrow, self.lora_b)

    def merged(self, weight: Tensor, lora_a: Tensor, lora_b: Tensor) -> Tensor:
        """Return the weight that has the effect of weight and adapter together, rounded once."""
        kind = torch.promote_types(weight.dtype, torch.float32)
        together = weight.to(kind) + self._difference(lora_a.to(kind), lora_b.to(kind))
        return together.detach().to(weight.dtype)

    def _difference(self, lora_a: Tensor, lora_b: Tensor) -> Tensor:
        product = self.scale * (lora_b @ lora_a)
        return product.T if isinstance(self.base, Conv1D) else product


def adapt(model: Any, settings: LoRASettings, seed: int) -> None:
    """Freeze `model`, and add adapters to its linear layers except its head, as peft does.

    Raises UnfitModelError if the model has none of --target_modules.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    head = model.get_output_embeddings()
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head and _is_linear(module)
    }
    wanted = set(settings.target_modules)
    chosen = [n for n in linear if ALL_LINEAR in wanted or n.rpartition(".")[2] in wanted]
    there = sorted({name.rpartition(".")[2] for name in linear})
    if not linear:
        raise UnfitModelError(f"--lora_rank: {type(model).__name__} has no linear layer to adapt")
    if not chosen:
        raise UnfitModelError(
            f"--target_modules {' '.join(settings.target_modules)}: the model has none of them. "
            f"Its linear layers are {', '.join(there)}; or give {ALL_LINEAR}"
        )
    if missing := sorted(wanted - {ALL_LINEAR, *there}):
        log.warning(
            "--target_modules: the model has no %s, and nothing is adapted there. Its linear "
            "layers are %s",
            *(", ".join(missing), ", ".join(there)),
        )
    generator = torch.Generator().manual_seed(seed)
    for name in chosen:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Adapted(linear[name], settings, generator))


def _is_linear(layer: Linear) -> bool:
    """Return whether a layer gives what its weight and bias say; some routers do not."""
    if type(layer) in (nn.Linear, Conv1D):
        return True
    wide, _ = _shape(layer)
    with torch.no_grad(), zero3.whole(layer.parameters()):
        inputs = torch.randn(2, wide, generator=torch.Generator().manual_seed(0)).to(layer.weight)
        weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
        try:
            given: Any = layer(inputs)
            return torch.allclose(given, functional.linear(inputs, weight, layer.bias), atol=1e-2)
        except (RuntimeError, TypeError, ValueError):  # another shape, or several results
            return False


def _shape(layer: Linear) -> tuple[int, int]:
    """Return the width of the input and of the output; a weight itself may be on other ranks."""
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    return layer.in_features, layer.out_features


def sources(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Return the name of each tensor without adapters → the names of the tensors it is made of.

    A tensor with several names occurs once.
    """
    found: dict[str, tuple[str, ...]] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        if id(value) in seen or name.endswith((".lora_a", ".lora_b")):
            continue
        seen.add(id(value))
        plain, at = _plain(model, name), name.removesuffix(".base.weight")
        adapted = name not in (plain, at)
        found[plain] = (name, f"{at}.lora_a", f"{at}.lora_b") if adapted else (name,)
    return found


def merged(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `tensors` of `model` with the adapters merged into the weights.

    Without adapters they are unchanged.
    """
    state: dict[str, Tensor] = {}
    for plain, (name, *adapters) in sources(model, tensors).items():
        value = tensors[name]
        if adapters:
            layer = model.get_submodule(name.removesuffix(".base.weight"))
            value = layer.merged(value, *(tensors[adapter] for adapter in adapters))
        state[plain] = value.detach()
    return state


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that training changes: all but frozen parameters."""
    named = model.named_parameters(remove_duplicate=False)  # a tied head has two names
    frozen = {name for name, parameter in named if not parameter.requires_grad}
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if name not in frozen}


def difference(saved: Shapes, model: Shapes) -> str:
    """Return how the adapters of a saved state differ from those of a model; "" if they fit.

    Both are shapes of trained tensors, by name.
    """
    before, now = _ranks(saved), _ranks(model)
    if {*before.values()} != {*now.values()}:
        has = f"adapters of rank {max(before.values())}" if before else "no adapters"
        return f"it has {has}, and --lora_rank is {max(now.values(), default=0)}"
    kinds = [sorted({name.rpartition(".")[2] for name in names}) for names in (before, now)]
    if kinds[0] != kinds[1]:
        old, new = map(" ".join, kinds)
        return f"its adapters are on {old}, and --target_modules puts them on {new}"
    return ""


def _ranks(shapes: Shapes) -> dict[str, int]:
    """Return the name of each adapted layer → the rank of its adapter."""
    return {
        name.removesuffix(".lora_a"): shape[0]
        for name, shape in shapes.items()
        if name.endswith(".lora_a")
    }


def _plain(model: nn.Module, name: str) -> str:
    """Return the name of a tensor in the model without adapters."""
    owner, found, own = name.rpartition(".base.")
    return f"{owner}.{own}" if found and isinstance(model.get_submodule(owner), Adapted) else name
