"""A model's forward pass, up to the hidden states in which actions were chosen.

Packed samples are end to end, so no padding passes through the model. flash-attn has kernels for
that; `packed_attention.attend` replaces sdpa. Samples that are not packed are padded on the right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl

from trainer.algorithms.batching import MicroBatchLimits, Pack, grid, pack
from trainer.algorithms.slices import slice_of
from trainer.config import architecture
from trainer.models import zero3
from trainer.models.limits import tiny_limits
from trainer.models.packed_attention import PACKED, PackedLayout, has_kernels
from trainer.models.positions import freeze, shape_of
from trainer.models.sequence_parallel import SharedPass, SharingRanks
from trainer.models.settings import ModelSettings
from trainer.models.vision import Placed, Vision
from trainer.types import IntArray, Sequences, UnfitModelError

log = logging.getLogger(__name__)

SEEN = "the model takes images"
UNLIKE = "packed, they would not have the states that they have alone (by a trial)"
PROBE = Sequences(
    np.array([1, 2, 3, 4, 5, 3, 1, 2, 2, 3, 1, 1], dtype=np.int32),
    np.array([5, 3, 4]),
    np.ones(12, dtype=np.bool_),
)
"""Sequences of different lengths, with tokens that every vocabulary has."""
OTHER = replace(PROBE, tokens=np.array([4, 2, 1, 1, 2, 3, 1, 2, 2, 3, 1, 1], dtype=np.int32))
"""The same sequences, except the first."""


@dataclass(frozen=True, slots=True)
class ActionStates:
    """The states in which a micro-batch's N actions were chosen, or this rank's n of them."""

    states: Tensor
    """[n, H], in the order of the actions"""
    ranks: SharingRanks | None = None
    """None: the rank has them all."""
    own: IntArray | None = None
    """[n] which of the actions they are; -1: none."""
    count: int = 0
    """N"""

    def of(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the part [n] of an array [N]."""
        return actions if self.own is None else actions[self.own]

    def whole(self, scores: Tensor) -> Tensor:
        """Return [N] the scores of all actions from those of the rank's; all ranks call it."""
        if self.ranks is None or self.own is None:
            return scores
        return self.ranks.whole(scores, self.own, self.count)


class Forward:
    """A backbone's hidden states, on its device and in its precision."""

    def __init__(
        self,
        backbone: Any,
        device: torch.device,
        settings: ModelSettings,
        vision: Vision | None = None,
        ranks: SharingRanks | None = None,
    ) -> None:
        """Samples are packed if `settings` says so and the model supports it; else padded.

        `vision`: what sees the images; None for a model of text. `ranks`: those that share each
        sample. Raises UnfitModelError if a model's samples cannot be shared.
        """
        freeze(backbone)
        if ranks:
            _check_sharing(backbone, ranks.size, vision)
        self._backbone = backbone
        self._vision = vision
        self._device = device
        self._mixed_precision = settings.mixed_precision
        self.packed = False
        """Whether samples are end to end."""
        self.padded_inside = False
        """Whether attention puts packed samples in rows of the longest one's length."""
        self._kernel = False
        self._ranks: SharingRanks | None = None
        # Positions of images have three dimensions, and the encoder shares the attention's name.
        self.packed = (
            settings.packing and vision is None and self._can_pack(shared=ranks is not None)
        )
        if settings.packing and not self.packed:
            log.warning("samples are padded: %s", SEEN if vision else UNLIKE)
        if ranks:
            self._share(ranks)

    def states(self, sequences: Sequences) -> ActionStates:
        """Return the state in which each action was chosen.

        An action's logits and value are functions of what the model saw one token before it.
        """
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._mixed_precision):
            return self._as_it_is(sequences)

    def limits(self, samples: int, tokens: int | None) -> MicroBatchLimits:
        """Return the limits of a micro-batch: `samples`, or `tokens` if a budget is given.

        Each of the ranks that share samples has its own budget.
        """
        if tokens is not None and self._ranks:
            tokens *= self._ranks.size
        longest = architecture.long_factors_from(shape_of(self._backbone.config))
        # A sample's last token does not pass through the model.
        apart = None if longest is None else longest + 1
        return MicroBatchLimits(
            samples=samples,
            tokens=tokens,
            packed=self.packed,
            padded_inside=self.padded_inside,
            apart=apart,
        )

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _as_it_is(self, sequences: Sequences) -> ActionStates:
        packed = pack(sequences)
        if self._ranks:
            return self._shared(packed, self._ranks)
        if self.packed:
            return ActionStates(self._end_to_end(packed))
        images = sequences.images or ((),) * len(sequences)
        return ActionStates(self._padded(packed, images))

    def _shared(self, packed: Pack, ranks: SharingRanks) -> ActionStates:
        """Return the states of this rank's slice of the samples."""
        part = slice_of(packed, ranks.place, ranks.size, end_to_end=self.packed)
        layout = None
        if self.packed:
            layout = PackedLayout(part.lengths, self._device, kernel=self._kernel)
        output = self._backbone(
            input_ids=self.tensor(part.tokens),
            position_ids=self.tensor(part.positions),
            use_cache=False,
            packed=layout,
            shared=SharedPass(ranks, self.tensor(part.inside)),
        )
        self.padded_inside = layout is not None and layout.padded
        states: Tensor = output.last_hidden_state.flatten(0, 1)
        states = states.index_select(0, self.tensor(part.before_action))
        return ActionStates(states, ranks, part.own, len(packed.before_action))

    def _padded(self, packed: Pack, images: Sequence[Placed]) -> Tensor:
        shape = len(packed.lengths), int(packed.lengths.max())
        _, places = grid(packed.lengths)
        tokens, mask = np.zeros((2, shape[0] * shape[1]), dtype=np.int64)
        tokens[places], mask[places] = packed.tokens, 1
        output = self._backbone(
            **self._inputs(self.tensor(tokens.reshape(shape)), images),
            attention_mask=self.tensor(mask.reshape(shape)),
            use_cache=False,
        )
        states: Tensor = output.last_hidden_state.flatten(0, 1)
        return states.index_select(0, self.tensor(places[packed.before_action]))

    def _inputs(self, tokens: Tensor, images: Sequence[Placed]) -> dict[str, Tensor]:
        """Return `tokens` [B, T]; for a model of images, as embeddings with positions."""
        if self._vision is None:
            return {"input_ids": tokens}
        positions = self._vision.positions((tokens.shape[0], tokens.shape[1]), images)
        return {
            "inputs_embeds": self._vision.embeddings(tokens, images),
            "position_ids": self.tensor(positions),
        }

    def _end_to_end(self, packed: Pack) -> Tensor:
        boundaries = self._boundaries(packed)
        output = self._backbone(
            input_ids=self.tensor(packed.tokens).long()[None],
            position_ids=self.tensor(packed.positions)[None],
            use_cache=False,
            **boundaries,
        )
        layout = boundaries.get("packed")
        self.padded_inside = layout is not None and layout.padded
        states: Tensor = output.last_hidden_state[0]
        return states.index_select(0, self.tensor(packed.before_action))

    def _boundaries(self, packed: Pack) -> dict[str, Any]:
        """Return arguments that give the attention the ends of the sequences."""
        if self._attention == PACKED:
            return {"packed": PackedLayout(packed.lengths, self._device, kernel=self._kernel)}
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

    @property
    def attention(self) -> str:
        """How samples lie, and what computes attention, in words."""
        name = self._attention or "eager"
        shared = f", each sample on {self._ranks.size} ranks" if self._ranks else ""
        if not self.packed:
            return f"samples padded, attention by {'sdpa' if shared else name}{shared}"
        if name != PACKED:
            return f"samples packed, attention by {name}"
        if self.padded_inside:
            return f"samples packed, attention by sdpa, which pads them{shared}"
        kind = current_flash_attention_impl()
        named = f" ({kind})" if kind else ""
        return f"samples packed, attention by torch's flash kernels{named}{shared}"

    def _share(self, ranks: SharingRanks) -> None:
        """Let the ranks share samples from now on, if a trial gives the states of one rank.

        Only `attend` exchanges what tokens need of one another. All ranks make the trial together,
        and all have the same outcome. It runs in fp32, as that of packing does.
        """
        backbone, packed, own = self._backbone, self.packed, self._attention
        padded_inside = self.padded_inside
        with torch.no_grad(), zero3.readable(backbone), tiny_limits(backbone):
            alone = self._outcome(PACKED if "flash" in own else own, self._as_it_is, packed=packed)
            self._ranks = ranks
            shared = self._outcome(PACKED, self._as_it_is, packed=packed)
        if not alone or not shared or not torch.allclose(shared[0], alone[0], 1e-4, 1e-4):
            raise UnfitModelError(
                f"--ring_attn_size {ranks.size}: on slices of a sample the model does not have the "
                f"states that it has on the whole sample (by a trial). {architecture.NOT_SHARED}"
            )
        self.packed, self.padded_inside = packed, padded_inside

    def _can_pack(self, *, shared: bool) -> bool:
        """Return whether a packed pass gives the states of a padded pass, by a trial.

        `attend` replaces sdpa, and flash-attn has its own kernels. Any other attention stays,
        because it may have features that these lack. Models differ in other ways, too, so only a
        trial is safe. Its sequences are shorter, as long and longer than each limit of the model,
        which is made tiny for it. It runs in fp32, in which rounding does not hide a leak between
        samples. Flash kernels have no fp32: `attend` pads in that trial, and they have a second
        one. If torch's kernels fail it, `attend` always pads; if flash-attn's do, samples are
        padded. `shared`: flash-attn makes way for torch's kernels, since only `attend` exchanges
        heads.
        """
        own = self._attention
        flash = "flash" in own
        if own != "sdpa" and not flash:
            return False
        with torch.no_grad(), zero3.readable(self._backbone), tiny_limits(self._backbone):
            exact = self._outcome(PACKED if flash else own, self._as_it_is)
            fits = _agree(exact, self._outcome(PACKED, self._as_it_is, packed=True), 1e-4)
            if fits and flash and not shared:
                fits = self._halves_agree(own, own, exact)
            elif fits and self._mixed_precision and has_kernels(self._device):
                self._kernel = True
                self._kernel = self._halves_agree(own, PACKED, exact)
                self.padded_inside |= not self._kernel
        if (flash and not shared) or not fits:
            self._backbone.set_attn_implementation(own)
        return fits

    def _halves_agree(self, padded: str, packed: str, exact: list[Tensor]) -> bool:
        halves = self._outcome(padded, self.states)
        got = self._outcome(packed, self.states, packed=True)
        return _agree(halves, got, 3e-2, noise=_distance(halves, exact))

    def _outcome(
        self, attention: str, run: Callable[[Sequences], ActionStates], *, packed: bool = False
    ) -> list[Tensor]:
        """Return the states of PROBE and, if packed, of OTHER; none if the model refuses."""
        try:
            self._backbone.set_attn_implementation(attention)
            self.packed = packed
            found = [run(samples) for samples in ((PROBE, OTHER) if packed else (PROBE,))]
            return [states.whole(states.states) for states in found]
        except (TypeError, ValueError, RuntimeError):
            return []
        finally:
            self.packed = False


def _check_sharing(backbone: Any, ranks: int, vision: Vision | None) -> None:
    """Raises UnfitModelError if it is known that so many ranks cannot share a model's samples."""
    flag = f"--ring_attn_size {ranks}"
    fault = architecture.sharing_fault(shape_of(backbone.config), ranks)
    if vision or fault:
        raise UnfitModelError(f"{flag}: {fault or f'{SEEN}. {architecture.NOT_SHARED}'}")


def _agree(
    padded: list[Tensor], packed: list[Tensor], tolerance: float, noise: float = 0.0
) -> bool:
    """Return whether outcomes are the same states.

    The first sample must not change the states of the others, either. Kernels repeat to the bit for
    equal shapes, so a leak shows far below `tolerance`. `noise`: what rounding changes in a state,
    which grows with the layers of a model and may choose other experts.
    """
    if not padded or not packed:
        return False
    (expected,), (got, beside) = padded, packed
    others = slice(int(PROBE.lengths[0]) - 1, None)
    leak = float((got[others] - beside[others]).abs().max())
    same = torch.allclose(got, expected, rtol=tolerance, atol=max(tolerance, 4 * noise))
    return same and leak <= max(tolerance / 10 * float(expected.abs().max()), noise)


def _distance(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest difference of the first states; 0 if there are none."""
    return float((one[0] - other[0]).abs().max()) if one and other else 0.0
