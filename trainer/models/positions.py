"""Rotary frequencies that depend on length: one set for all samples of a run."""

from __future__ import annotations

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


def freeze_dynamic(model: nn.Module) -> None:
    """Keep frequencies of rope_type dynamic as pretrained, as vLLM does.

    transformers would follow the longest sequence so far. Samples of a run do not get that long.
    """
    module: Any
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and "dynamic" in kind:
            module.rope_type = "default"
        elif isinstance(kind, dict):
            module.rope_type = {
                layer: "default" if "dynamic" in one else one for layer, one in kind.items()
            }
