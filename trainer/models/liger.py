"""Liger's kernels (Hsu et al. 2024): each norm, rotary embedding and gated MLP in one kernel.

Liger replaces them in the model itself. The head's kernels are not used: `fused_log_probs` gives a
log-probability of each token, and Liger's a loss.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

log = logging.getLogger(__name__)


def use_liger(model: Any, device: torch.device) -> None:
    """Let `model` compute on `device` with Liger's kernels, if Liger has some for it."""
    if device.type != "cuda":
        log.warning("--use_liger_kernel has no effect: Liger's kernels need a GPU")
        return
    from liger_kernel.transformers import monkey_patch

    kind = model.config.model_type
    if kind not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        log.warning("--use_liger_kernel has no effect: Liger has no kernels for %s", kind)
        return
    monkey_patch._apply_liger_kernel_to_instance(
        model, cross_entropy=False, fused_linear_cross_entropy=False
    )
