"""Mixed precision: compute with bf16 weights, update in fp32 (Micikevicius et al. 2018).

DeepSpeed does so under ZeRO; this module does the rest. Buffers, such as the frequencies of rotary
embeddings, keep their precision: bf16 would misplace distant tokens.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def to_bf16(model: nn.Module) -> None:
    """Round every weight to bf16, also weights that transformers keeps in fp32.

    DeepSpeed rounds those, too, so a policy and its reference are always the same function.
    """
    for parameter in model.parameters():
        held = (getattr(parameter, name, None) for name in ("ds_tensor", "ds_secondary_tensor"))
        for part in (parameter, *held):
            if part is not None and part.is_floating_point():
                part.data = part.data.to(torch.bfloat16)


class Masters:
    """The fp32 weights of a model, which the optimizer updates; the model computes in bf16."""

    def __init__(self, model: nn.Module) -> None:
        """`model` is in fp32 before. Frozen parameters have no master."""
        trained = [each for each in model.parameters() if each.requires_grad]
        frozen = [each for each in model.parameters() if not each.requires_grad]
        known: dict[int, Any] = {id(tensor): tensor for tensor in (*frozen, *model.buffers())}
        known |= {id(weight): nn.Parameter(weight.detach()) for weight in trained}
        self.model = copy.deepcopy(model, known)
        """The same modules and names, with the masters as parameters."""
        self._pairs = [(weight, known[id(weight)]) for weight in trained]
        to_bf16(model)
        for working, master in self._pairs:
            hook = partial(_hand_over, master)
            working.register_post_accumulate_grad_hook(hook)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters to the weights that the model computes with."""
        for working, master in self._pairs:
            working.copy_(master)


def _hand_over(master: nn.Parameter, working: Tensor) -> None:
    """Add the gradient of one pass to the master's gradient, in fp32."""
    assert working.grad is not None
    gradient, working.grad = working.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
