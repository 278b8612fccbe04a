"""Chooses what computes the models' passes on GPUs: packed samples, attention, Liger's kernels.

Samples are packed where the architecture allows it. Attention is left to torch then: its kernels
are those of FlashAttention-2, as in the package flash-attn, so the package is not faster. It is
taken only for a soft cap of the logits, which torch has no kernel for. Liger's kernels are taken
where they are installed: on one H200 the share of the peak rose from 0.28 to 0.35.
"""

from __future__ import annotations

from collections.abc import Set
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trainer.config import architecture
from trainer.config.model_files import known_shape

if TYPE_CHECKING:
    from trainer.config.config import Config

PACKING, LIGER, ATTENTION = "packing_samples", "use_liger_kernel", "attn_implementation"
KERNELS = (PACKING, LIGER, ATTENTION)
FLASH = "flash_attention_2"


def chosen(config: Config, given: Set[str]) -> dict[str, Any]:
    """Return values of the flags in KERNELS that were not given; none for models of images."""
    if config.sees_images:
        return {}
    found: dict[str, Any] = {}
    if not given & {ATTENTION, "flash_attn"} and _needs_flash(config):
        found[ATTENTION] = FLASH
    attention = found.get(ATTENTION, config.attn_implementation)
    if PACKING not in given:
        fault = architecture.packing_fault(known_shape(config.pretrain), attention)
        found[PACKING] = fault is None
    if LIGER not in given and config.mixed_precision:
        found[LIGER] = find_spec("liger_kernel") is not None
    return found


def _needs_flash(config: Config) -> bool:
    """Return whether flash-attn is installed, and all models cap the logits of attention."""
    shapes = [known_shape(model) for model in config.models.values()]
    capped = all(shape.get("attn_logit_softcapping") for shape in shapes)
    return capped and config.mixed_precision and find_spec("flash_attn") is not None


def sentence(config: Config) -> str:
    """Return what computes the policy's passes on a GPU, in words."""
    attention = config.attn_implementation
    shape = known_shape(config.pretrain)
    by = architecture.attention_of(shape, attention) or "sdpa"
    packed = config.packing_samples and not config.sees_images
    packed = packed and architecture.packing_fault(shape, attention) is None
    if packed and by == "sdpa" and config.mixed_precision:
        by = "torch's flash kernels"
    rest = [f"attention by {by}", *(["Liger's kernels"] if config.use_liger_kernel else [])]
    return ", ".join(["samples packed" if packed else "samples padded", *rest])


def reason(config: Config, flags: Set[str]) -> str | None:
    """Return what computes the passes, and why flags in KERNELS were chosen; None if none was."""
    why = {
        PACKING: "packing keeps padding out of the passes",
        LIGER: "Liger's kernels are installed",
        ATTENTION: "flash-attn caps the logits of attention, and sdpa does not",
    }
    said = [one for name, one in why.items() if name in flags]
    missing = LIGER not in flags and not config.use_liger_kernel and config.mixed_precision
    if missing and find_spec("liger_kernel") is None:
        said.append("liger-kernel is not installed here, which the CUDA image has")
    return "; ".join([sentence(config), *said]) if said else None
