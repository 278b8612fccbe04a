"""A trial of a model: does a row's next token depend on the rows beside it?

Rows are padded on the left, join others in mid-decoding and leave them. Most architectures allow
that: they place tokens by their positions and mask what is padding. Only a trial shows the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.models import zero3
from trainer.models.limits import tiny_limits
from trainer.models.vision import Vision
from trainer.rollout.hf_engine.batch import Piece, prefill

ROWS = ([3, 1, 2, 4, 5], [2, 3, 1], [4, 2, 1, 1])
"""Tokens that every vocabulary has."""
TOLERANCE = 5e-2
"""Largest difference of two logits, in standard deviations of the logits.

Rounding alone makes 1e-5, and more where a mixture of experts chooses between two equal ones."""


def fault(
    model: Any, device: torch.device, vision: Vision | None = None, longest: int | None = None
) -> str | None:
    """Return why rows of `model` depend on their neighbours; None if they do not.

    It runs in fp32, in which rounding does not hide a dependence. A limit that no row reaches
    (`longest` tokens) stays as it is.
    """
    try:
        with torch.inference_mode(), zero3.readable(model), tiny_limits(model, longest):
            alone = torch.cat([_prefilled(model, [row], device, vision) for row in ROWS])
            beside = _decoded(model, device, vision)
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        return f"it does not decode a batch: {type(error).__name__}: {error}"
    worst, spread = float((alone - beside).abs().max()), float(alone.std())
    if worst <= TOLERANCE * spread:
        return None
    return (
        "a row's next token depends on the padding and the rows beside it: in a trial, logits "
        f"differ by {worst:.2g}, where their standard deviation is {spread:.2g}"
    )


def _decoded(model: Any, device: torch.device, vision: Vision | None) -> Tensor:
    """Return logits [B, V] after the last token of ROWS: padded, decoded, joined and regrouped."""
    first = [_piece(row[:-2], number) for number, row in enumerate(ROWS[:2])]
    begun = prefill(model, first, device, vision)
    begun.advance(_next(ROWS[:2], -2, device))
    begun.join(prefill(model, [_piece(ROWS[2][:-1], 2)], device, vision))
    begun.keep(torch.tensor([2, 0, 1], device=device))
    begun.advance(_next(ROWS, -1, device)[[2, 0, 1]])
    return begun.logits[[1, 2, 0]].float()


def _prefilled(
    model: Any, rows: Sequence[list[int]], device: torch.device, vision: Vision | None
) -> Tensor:
    pieces = [_piece(row, number) for number, row in enumerate(rows)]
    return prefill(model, pieces, device, vision).logits.float()


def _piece(tokens: Sequence[int], row: int) -> Piece:
    return Piece(tokens, np.array([row]))


def _next(rows: Sequence[list[int]], place: int, device: torch.device) -> Tensor:
    return torch.tensor([row[place] for row in rows], device=device)
