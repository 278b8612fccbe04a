"""Loading a model and running it forward: what policy, critic, reference and engine share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from trainer.types import FloatArray, IntArray, Sequences


def prepare_process() -> torch.device:
    """Settle what this process computes with. Returns its device.

    One thread unless OMP_NUM_THREADS says otherwise: sums then have one order, and runs repeat to
    the bit.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_causal_lm(model: str, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype)


class Forward:
    """A model's forward pass over right-padded sequences, on its device and in its precision."""

    def __init__(self, module: nn.Module, device: torch.device, mixed_precision: bool) -> None:
        self._module = module
        self._device = device
        self._mixed_precision = mixed_precision

    def output(self, sequences: Sequences) -> Any:
        width = sequences.tokens.shape[1]
        mask = np.arange(width) < sequences.lengths[:, None]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._mixed_precision):
            return self._module(
                input_ids=self.tensor(sequences.tokens),
                attention_mask=self.tensor(mask.astype(np.int64)),
            )

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.tensor(array, device=self._device)


def token_log_probs(forward: Forward, sequences: Sequences, temperature: float) -> Tensor:
    """[B, T] log-probability of each action token given what precedes it; zero elsewhere.

    Under the logits divided by `temperature`: the distribution that the sampler drew from.
    """
    actions = forward.tensor(sequences.actions)
    tokens = forward.tensor(sequences.tokens)
    logits = forward.output(sequences).logits[:, :-1][actions[:, 1:]].float() / temperature
    chosen = -functional.cross_entropy(logits, tokens[actions], reduction="none")
    return scatter(chosen, actions)


def scatter(chosen: Tensor, actions: Tensor) -> Tensor:
    """One number for each action, in order → [B, T], zero elsewhere."""
    spread = torch.zeros(actions.shape, dtype=chosen.dtype, device=chosen.device)
    return spread.masked_scatter(actions, chosen)


@torch.inference_mode()
def in_micro_batches(
    compute: Callable[[Sequences], Tensor], sequences: Sequences, size: int
) -> FloatArray:
    """`compute` over the whole batch, `size` samples of like length at a time. [B, T]"""
    result = np.zeros(sequences.tokens.shape, dtype=np.float32)
    for rows in by_length(sequences, np.arange(len(sequences)), size):
        part = sequences.rows(rows)
        if part.actions.any():
            result[rows, : part.tokens.shape[1]] = compute(part).float().cpu().numpy()
    return result


def by_length(sequences: Sequences, rows: IntArray, size: int) -> list[IntArray]:
    """`rows` in groups of `size`, each of neighbours in length: next to no padding."""
    ordered = rows[np.argsort(sequences.lengths[rows], kind="stable")]
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
