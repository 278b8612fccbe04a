"""How far the fused log-probabilities and their gradients are from those of all logits in float64.

`python -m tests.support.log_prob_errors` prints it as Triton interprets the kernels on a CPU, if
TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.models import fused_log_probs, log_probs
from trainer.models.log_probs import Projection, of_logits

TEMPERATURE, SCALE = 0.7, 1.3
NAMES = ("log_probs", "entropy", "of_states", "of_weight")


def errors(shape: tuple[int, int, int], *, entropy: bool, device: str = "cpu") -> dict[str, float]:
    """The relative error of each result in bf16. `shape`: tokens, vocabulary, hidden size."""
    fused_log_probs.BLOCK_ELEMENTS = shape[0] * 300  # several blocks, and a part of one
    rows, vocabulary, hidden = shape
    torch.manual_seed(0)
    states = torch.randn(rows, hidden, device=device).bfloat16()
    weight = (torch.randn(vocabulary, hidden, device=device) * 0.3).bfloat16()
    tokens = torch.randint(0, vocabulary, (rows,), device=device)
    tokens[:2] = torch.tensor([0, vocabulary - 1], device=device)

    def all_logits(states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = Projection(weight, scale=SCALE).logits(states)
        return of_logits(logits, tokens, TEMPERATURE, entropy=entropy)

    def fused(states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        factor = SCALE / TEMPERATURE
        return fused_log_probs.token_log_probs(states, weight, tokens, factor, entropy=entropy)

    right = _results(all_logits, states.double(), weight.double())
    found = _results(fused, states, weight)
    return {
        name: float((found[name].double() - right[name]).norm() / right[name].norm())
        for name in right
    }


def _results(
    score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]], states: Tensor, weight: Tensor
) -> dict[str, Tensor]:
    states, weight = states.requires_grad_(), weight.requires_grad_()
    log_probs, entropy = score(states, weight)
    of_tokens = torch.linspace(-1, 1, len(states), device=states.device, dtype=log_probs.dtype)
    total = (log_probs * of_tokens).sum()
    if entropy is not None:
        total = total + 0.1 * (entropy * of_tokens.flip(0)).sum()
    gradients = torch.autograd.grad(total, (states, weight))
    results = (log_probs.detach(), None if entropy is None else entropy.detach(), *gradients)
    return {name: one for name, one in zip(NAMES, results, strict=True) if one is not None}


def run_in_a_pass_without_gradients() -> bool:
    """Whether the trial, which has gradients, passes where there are none."""
    with torch.inference_mode():
        return log_probs._kernels(torch.device("cpu")) is fused_log_probs


if __name__ == "__main__":
    assert run_in_a_pass_without_gradients()
    print(json.dumps([errors((24, 1000, 32), entropy=entropy) for entropy in (False, True)]))
