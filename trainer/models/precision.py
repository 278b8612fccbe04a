"""A model that computes with weights in bf16, and is updated in fp32 (Micikevicius et al. 2018).

DeepSpeed does so at its stages; here is what it does not do. Buffers, such as the frequencies of
rotary embeddings, stay as they are: rounded to bf16 they would place far tokens wrongly.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def to_bf16(model: nn.Module) -> None:
    """Round every weight, also those that transformers keeps in fp32 and DeepSpeed does not.

    So that a policy and its reference are the same function, whatever holds them.
    """
    for parameter in model.parameters():
        held = (getattr(parameter, name, None) for name in ("ds_tensor", "ds_secondary_tensor"))
        for part in (parameter, *held):
            if part is not None and part.is_floating_point():
                part.data = part.data.to(torch.bfloat16)


class Masters:
    """The weights of a model in fp32, as they are updated; the model computes with them in bf16."""

    def __init__(self, model: nn.Module) -> None:
        """`model` is in fp32 until now. What is frozen has no master."""
        trained = [one for one in model.parameters() if one.requires_grad]
        as_they_are = [one for one in model.parameters() if not one.requires_grad]
        known: dict[int, Any] = {id(one): one for one in (*as_they_are, *model.buffers())}
        known |= {id(one): nn.Parameter(one.detach()) for one in trained}
        self.model = copy.deepcopy(model, known)
        """The same modules and names, around the masters."""
        self._pairs = [(one, known[id(one)]) for one in trained]
        to_bf16(model)
        for working, master in self._pairs:
            hook = partial(_hand_over, master)
            working.register_post_accumulate_grad_hook(hook)

    @torch.no_grad()
    def publish(self) -> None:
        """The model computes with the masters as they are now."""
        for working, master in self._pairs:
            working.copy_(master)


def _hand_over(master: nn.Parameter, working: Tensor) -> None:
    """Gradients of all passes of an update are added up in fp32."""
    assert working.grad is not None
    gradient, working.grad = working.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
