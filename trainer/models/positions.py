"""Rotary frequencies that depend on length: one set for all samples of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from trainer.config import architecture


def shape_of(config: Any) -> dict[str, Any]:
    """Return the configuration of the language model, as `architecture` reads it."""
    shape: dict[str, Any] = config.get_text_config().to_dict()
    return shape


def settle(config: Any, longest: int) -> None:
    """Give a model's configuration the frequencies that samples of `longest` tokens need.

    Longrope has short factors and long ones. Above the positions of pretraining the long ones take
    the place of the short ones. So transformers has no choice left, and an exported model is the
    function that was trained, at each length and in each engine.
    """
    text = config.get_text_config()
    limit = architecture.long_factors_from(shape_of(config))
    if limit is None or longest <= limit:
        return
    for parameters in architecture.rotary({"rope_parameters": text.rope_parameters}):
        if architecture.rope_type(parameters) == "longrope":
            assert isinstance(parameters, dict)
            for name in ("factor", "mscale"):
                if f"long_{name}" in parameters:
                    parameters[f"short_{name}"] = parameters[f"long_{name}"]


def freeze(model: nn.Module) -> None:
    """Keep the rotary frequencies of `model` as they are, where passes must not change them.

    Those of rope_type dynamic stay as pretrained, as in vLLM: transformers would follow the longest
    sequence so far, and samples of a run do not get that long. Longrope with one set of factors has
    nothing to choose.
    """
    module: Any
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if not kind:
            continue
        given = getattr(module.config, "rope_parameters", None) or {}
        if isinstance(kind, str):
            module.rope_type = _frozen(kind, given)
        else:  # by type of layer
            module.rope_type = {n: _frozen(one, given.get(n, {})) for n, one in kind.items()}


def _frozen(kind: str, parameters: Mapping[str, Any]) -> str:
    """Return the rope_type by which transformers' update leaves frequencies alone, or `kind`."""
    one_set = kind == "longrope" and parameters.get("short_factor") == parameters.get("long_factor")
    return "default" if one_set or "dynamic" in kind else kind
