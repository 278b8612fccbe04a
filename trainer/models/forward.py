"""A model's forward pass, up to the hidden states in which actions were chosen.

Packed samples are end to end, so no padding passes through the model. Flash attention has kernels
for that; `packed_attention.attend` replaces sdpa. Samples that are not packed are padded on the
right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.algorithms.batching import MicroBatchLimits, Pack, pack
from trainer.config import architecture
from trainer.models import zero3
from trainer.models.limits import tiny_limits
from trainer.models.packed_attention import PACKED, PackedLayout
from trainer.models.positions import freeze, shape_of
from trainer.models.vision import Vision
from trainer.types import Sequences

PROBE = Sequences(
    np.array([[1, 2, 3, 4, 5], [3, 1, 2, 0, 0], [2, 3, 1, 1, 0]]),
    np.array([5, 3, 4]),
    np.arange(5) < np.array([[5], [3], [4]]),
)
"""Sequences of different lengths, with tokens that every vocabulary has."""
OTHER = replace(PROBE, tokens=np.array([[4, 2, 1, 1, 2], [3, 1, 2, 0, 0], [2, 3, 1, 1, 0]]))
"""The same sequences, except the first."""


class Forward:
    """A backbone's hidden states, on its device and in its precision."""

    def __init__(
        self,
        backbone: Any,
        device: torch.device,
        *,
        mixed_precision: bool,
        packed: bool,
        vision: Vision | None = None,
    ) -> None:
        """`packed`: pack samples if the model supports it; else pad them.

        `vision`: what sees the images; None for a model of text.
        """
        freeze(backbone)
        self._backbone = backbone
        self._vision = vision
        self._device = device
        self._mixed_precision = mixed_precision
        self.packed = False
        """Whether samples are end to end."""
        # Positions of images have three dimensions, and the encoder shares the attention's name.
        self.packed = packed and vision is None and self._can_pack()

    def states(self, sequences: Sequences) -> Tensor:
        """Return [N, H] the state in which each action was chosen, in the order of the actions.

        An action's logits and value are functions of what the model saw one token before it.
        """
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._mixed_precision):
            return self._as_it_is(sequences)

    def limits(self, samples: int, tokens: int | None) -> MicroBatchLimits:
        """Return the limits of a micro-batch: `samples`, or `tokens` if a budget is given."""
        longest = architecture.long_factors_from(shape_of(self._backbone.config))
        # A sample's last token does not pass through the model.
        apart = None if longest is None else longest + 1
        return MicroBatchLimits(samples=samples, tokens=tokens, packed=self.packed, apart=apart)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _as_it_is(self, sequences: Sequences) -> Tensor:
        return self._end_to_end(pack(sequences)) if self.packed else self._padded(sequences)

    def _padded(self, sequences: Sequences) -> Tensor:
        width = sequences.tokens.shape[1] - 1  # the state after the last token is not needed
        mask = np.arange(width) < sequences.lengths[:, None] - 1
        output = self._backbone(
            **self._inputs(sequences),
            attention_mask=self.tensor(mask.astype(np.int64)),
            use_cache=False,
        )
        states: Tensor = output.last_hidden_state[self.tensor(sequences.action_mask[:, 1:])]
        return states

    def _inputs(self, sequences: Sequences) -> dict[str, Tensor]:
        """Return all tokens but the last; for a model of images, as embeddings with positions."""
        tokens = self.tensor(sequences.tokens[:, :-1])
        if self._vision is None:
            return {"input_ids": tokens}
        images = sequences.images or ((),) * len(sequences)
        positions = self._vision.positions((tokens.shape[0], tokens.shape[1]), images)
        return {
            "inputs_embeds": self._vision.embeddings(tokens, images),
            "position_ids": self.tensor(positions),
        }

    def _end_to_end(self, packed: Pack) -> Tensor:
        output = self._backbone(
            input_ids=self.tensor(packed.tokens)[None],
            position_ids=self.tensor(packed.positions)[None],
            use_cache=False,
            **self._boundaries(packed),
        )
        states: Tensor = output.last_hidden_state[0]
        return states.index_select(0, self.tensor(packed.before_action))

    def _boundaries(self, packed: Pack) -> dict[str, Any]:
        """Return arguments that give the attention the ends of the sequences."""
        if self._attention == PACKED:
            return {"packed": PackedLayout.of(packed.lengths, self._device)}
        ends = np.concatenate([[0], np.cumsum(packed.lengths)]).astype(np.int32)
        longest = int(packed.lengths.max())
        starts = self.tensor(ends)
        return {
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    @property
    def _attention(self) -> str:
        name: str = self._backbone.config._attn_implementation
        return name

    def _can_pack(self) -> bool:
        """Return whether a packed pass gives the states of a padded pass, by a trial.

        `attend` replaces sdpa, and flash attention has its own kernels. Any other attention stays,
        because it may have features that these lack. Models differ in other ways, too, so only a
        trial is safe. Its sequences are shorter, as long and longer than each limit of the model,
        which is made tiny for it. It runs in fp32, in which rounding does not hide a leak between
        samples. Flash attention has no fp32: `attend` replaces it in that trial, and its kernels
        have a second trial.
        """
        own = self._attention
        flash = "flash" in own
        if own != "sdpa" and not flash:
            return False
        with torch.no_grad(), zero3.readable(self._backbone), tiny_limits(self._backbone):
            fits = self._agree(PACKED if flash else own, PACKED, self._as_it_is, 1e-4)
            if fits and flash:
                fits = self._agree(own, own, self.states, 3e-2)
        if flash or not fits:
            self._backbone.set_attn_implementation(own)
        return fits

    def _agree(
        self, padded: str, packed: str, run: Callable[[Sequences], Tensor], tolerance: float
    ) -> bool:
        """Return whether both attentions give the same states, padded and packed.

        The first sample must not change the states of the others, either. Kernels repeat to the bit
        for equal shapes, so a leak shows far below `tolerance`.
        """
        try:
            self._backbone.set_attn_implementation(padded)
            expected = run(PROBE)
            self._backbone.set_attn_implementation(packed)
            self.packed = True
            got, beside = run(PROBE), run(OTHER)
        except (TypeError, ValueError, RuntimeError):
            return False
        finally:
            self.packed = False
        others = slice(int(PROBE.lengths[0]) - 1, None)
        leak = (got[others] - beside[others]).abs().max()
        same = torch.allclose(got, expected, rtol=tolerance, atol=tolerance)
        return same and bool(leak <= tolerance / 10 * expected.abs().max())
