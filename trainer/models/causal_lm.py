"""Computes a causal language model's log-probabilities of samples, and their entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from trainer.algorithms.batching import MicroBatchLimits, pack
from trainer.algorithms.division import Part
from trainer.models import zero3
from trainer.models.forward import PROBE, Forward
from trainer.models.limits import tiny_limits
from trainer.models.loading import in_passes, share_threads
from trainer.models.log_probs import Projection, of_logits, token_log_probs
from trainer.models.sequence_parallel import SharingRanks
from trainer.models.settings import ModelSettings
from trainer.models.vision import vision_of
from trainer.types import FloatArray, Sequences


class Head(nn.Module):
    """Computes log-probabilities from states; a module, so that ZeRO-3 gathers its weights."""

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self._projection = projection
        self.weight, self.bias = projection.weight, projection.bias

    def forward(
        self, states: Tensor, tokens: Tensor, temperature: float, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        return token_log_probs(states, tokens, self._projection, temperature, entropy=entropy)


class LogProbModel(nn.Module):
    """A model with its head, which scores the actions of samples."""

    def __init__(
        self,
        model: Any,
        device: torch.device,
        settings: ModelSettings,
        ranks: SharingRanks | None = None,
    ) -> None:
        """`ranks`: those that share each sample, if there are several."""
        super().__init__()
        self.model = model
        projection = projection_of(model)
        self._head = Head(projection) if projection else None
        self._forward = Forward(
            backbone_of(model) if projection else LogitsAsStates(model),
            device,
            settings,
            vision=vision_of(model, settings.model),
            ranks=ranks,
        )
        self._limits = self.limits(settings.micro_batch_size, settings.max_tokens)
        self._temperature = settings.temperature
        self._concurrent_models = settings.concurrent_models

    def forward(
        self, sequences: Sequences, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return [N] log-probability of each action, and [N] entropy or None."""
        found = self._forward.states(sequences)
        chosen = found.of(sequences.tokens[sequences.action_mask])
        tokens = self._forward.tensor(chosen).long()
        head = self._head or of_logits
        log_probs, spread = head(found.states, tokens, self._temperature, entropy=entropy)
        return found.whole(log_probs), None if spread is None else found.whole(spread)

    def log_probs(
        self, part: Part, run: Callable[[Sequences], tuple[Tensor, Any]] | None = None
    ) -> FloatArray:
        """Return [N] log-probability of each action of the rank's samples.

        `run` replaces this module if something wraps it.
        """
        share_threads(self._concurrent_models)
        score = run or self
        return in_passes(lambda sequences: score(sequences)[0], part, self._limits)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return self._forward.tensor(array)

    def limits(self, samples: int, tokens: int | None) -> MicroBatchLimits:
        return self._forward.limits(samples, tokens)

    @property
    def packed(self) -> bool:
        return self._forward.packed

    @property
    def attention(self) -> str:
        return self._forward.attention


LOUD = 100.0
"""Factor of logits in the trial, so that a soft cap shows even in an untrained model."""


def projection_of(model: Any) -> Projection | None:
    """Return the head of `model` as a Projection; None if it is something else.

    A head is a linear layer, with or without bias. Some models also scale (Cohere, Granite) or
    softly cap (Gemma) their logits. Each form that the configuration suggests is compared with the
    model's logits of a few tokens, in fp32. So a model that does anything else is recognised.
    """
    linear, backbone = model.get_output_embeddings(), backbone_of(model)
    if type(linear) is not nn.Linear or backbone is None:
        return None
    tokens = torch.tensor([[1, 2, 3]], device=linear.weight.device)
    hook = linear.register_forward_hook(lambda module, inputs, output: output * LOUD)
    try:
        with torch.no_grad(), zero3.readable(model), _in_any_precision(model):
            expected = model(input_ids=tokens, use_cache=False).logits[0].float()
            states = backbone(input_ids=tokens, use_cache=False).last_hidden_state[0]
    finally:
        hook.remove()
    with zero3.whole(linear.parameters()):
        for scale, softcap in _suggested(model.config.get_text_config()):
            loud = Projection(linear.weight.detach(), _detached(linear.bias), scale * LOUD, softcap)
            if torch.allclose(loud.logits(states).float(), expected, rtol=1e-3, atol=1e-3):
                return Projection(linear.weight, linear.bias, scale, softcap)
    return None


def separates_by_positions(model: Any) -> bool:
    """Return whether positions alone keep samples that lie end to end apart, by a trial.

    transformers' own attentions find the ends where positions begin anew. A state, ALiBi or a chunk
    of attention does not end there.
    """
    packed, device = pack(PROBE), model.get_input_embeddings().weight.device
    tokens = torch.from_numpy(packed.tokens).long().to(device)
    positions = torch.from_numpy(packed.positions.copy())[None].to(device)
    with torch.no_grad(), zero3.readable(model), _in_any_precision(model), tiny_limits(model):
        rows = tokens.split(packed.lengths.tolist())
        alone = torch.cat([model(input_ids=row[None], use_cache=False).logits[0] for row in rows])
        try:
            together = model(
                input_ids=tokens[None], position_ids=positions, use_cache=False
            ).logits[0]
        except (TypeError, ValueError, RuntimeError):
            return False
    return torch.allclose(together.float(), alone.float(), rtol=1e-4, atol=1e-4)


def backbone_of(model: Any) -> Any:
    """Return the part of `model` that computes the head's hidden states; None if unknown.

    A few classes (Llama 4's for text) name a part that only a larger model has. Then it is their
    only transformer.
    """
    if model.base_model is not model:
        return model.base_model
    inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    return inner[0] if len(inner) == 1 else None


@contextmanager
def _in_any_precision(model: Any) -> Iterator[None]:
    """Replace flash attention in the block, because it refuses fp32 weights.

    The replacement is `eager`, because some models with flash attention have no sdpa.
    """
    before: str = model.config._attn_implementation
    if "flash" not in before:
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _suggested(config: Any) -> Iterator[tuple[float, float | None]]:
    """Yield scales and soft caps to try."""
    softcap = getattr(config, "final_logit_softcapping", None)
    multiplier = getattr(config, "logit_scale", None) or 1.0
    divisor = getattr(config, "logits_scaling", None) or 1.0
    for scale in (1.0, multiplier, divisor, 1 / divisor):
        yield scale, softcap


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


class LogitsAsStates(nn.Module):
    """A model whose states are its logits, for a head that is not a Projection.

    If the head begins with a linear layer, it computes in fp32, as a Projection does.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.config = model.config
        linear = model.get_output_embeddings()
        if type(linear) is nn.Linear:
            linear.forward = partial(_in_fp32, linear)  # type: ignore[method-assign]

    def set_attn_implementation(self, name: str) -> None:
        self._model.set_attn_implementation(name)

    def forward(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self._model(**inputs).logits)


def _in_fp32(linear: nn.Linear, states: Tensor) -> Tensor:
    """Return the layer's output, computed in fp32 at least."""
    kind = torch.promote_types(states.dtype, torch.float32)
    bias = None if linear.bias is None else linear.bias.to(kind)
    with torch.autocast(states.device.type, enabled=False):
        return functional.linear(states.to(kind), linear.weight.to(kind), bias)
