"""The critic: how much reward is still to come, token by token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer

from trainer.algorithms import losses
from trainer.algorithms.losses import CriticObjective, Loss, ValueInputs
from trainer.algorithms.seeds import derive
from trainer.models import hf_export as export
from trainer.models import lora, value_head, zero3_loading
from trainer.models.forward import Forward
from trainer.models.gpu_memory import Peaks
from trainer.models.loading import in_passes, load_backbone, prepare_process, share_threads
from trainer.types import ALONE, Experience, FloatArray, Metrics, Rank, Sequences
from trainer.workers.keeper import Keeper
from trainer.workers.learner import LossBatch, Training
from trainer.workers.settings import LearnerSettings


class ValueHead(nn.Linear):
    """Computes in fp32 at least, whatever its weights are in."""

    def forward(self, states: Tensor) -> Tensor:
        kind = torch.promote_types(states.dtype, torch.float32)
        return functional.linear(states.to(kind), self.weight.to(kind)).squeeze(-1)


class ValueModel(nn.Module):
    """A transformer with a linear head in place of the vocabulary."""

    def __init__(
        self, backbone: Any, forward: Forward, seed: int, head: Tensor | None = None
    ) -> None:
        """`forward`: the way through `backbone`; `head` [1, H]: a trained one, fresh where None."""
        super().__init__()
        self.backbone = backbone
        self._forward = forward
        hidden = hidden_size(backbone)
        self.value_head = ValueHead(hidden, 1, bias=False)
        if head is not None:
            self.value_head.load_state_dict({"weight": head})
            return
        generator = torch.Generator().manual_seed(derive(seed, "value-head"))
        nn.init.normal_(self.value_head.weight, std=1 / (hidden + 1), generator=generator)

    def forward(self, sequences: Sequences) -> Tensor:
        """[N] value of the state in which each action was chosen; in fp32 at least."""
        values: Tensor = self.value_head(self._forward.states(sequences))
        return values


def hidden_size(backbone: Any) -> int:
    size: int = backbone.config.get_text_config().hidden_size
    return size


def _backbone(settings: LearnerSettings, rank: Rank) -> Any:
    made = settings.model
    with zero3_loading.split(settings.sharding, rank):
        backbone = load_backbone(made.model, torch.float32, made.attention)
    if settings.gradient_checkpointing:
        backbone.gradient_checkpointing_enable()
    if settings.lora is not None:
        lora.adapt(backbone, settings.lora, derive(settings.seed, "critic-lora"))
    return backbone


class CriticActor(Keeper):
    def __init__(
        self, settings: LearnerSettings, objective: CriticObjective, rank: Rank = ALONE
    ) -> None:
        device = prepare_process(deterministic=settings.model.deterministic)
        peaks = Peaks()
        self._source = settings.model.model
        with peaks.phase("load"):
            backbone = _backbone(settings, rank).to(device).eval()
            self._forward = Forward(
                backbone,
                device,
                mixed_precision=settings.model.mixed_precision,
                packed=settings.model.packing,
            )
        self._prefix = value_head.prefix_in(backbone.config, objective.value_head_prefix)
        head = value_head.load(self._source, self._prefix, hidden_size(backbone))
        self._model = ValueModel(backbone, self._forward, settings.seed, head).to(device).eval()
        made = settings.model
        limits = self._forward.limits(settings.micro_train_batch_size, settings.max_tokens)
        self._training = Training(
            "critic", self._model, self._model, settings, rank, limits=limits, peaks=peaks
        )
        self._limits = self._forward.limits(made.micro_batch_size, made.max_tokens)
        self._at_once = settings.model.at_once
        self._objective = objective
        self._rank = rank

    def values(self, sequences: Sequences) -> FloatArray:
        with self._training.awake("forward") as run:
            share_threads(self._at_once)
            return in_passes(run, sequences, self._limits, self._rank)

    def update(self, experience: Experience, step: int) -> Metrics:
        with self._training.awake("update") as run:
            metrics = self._training.fit(experience, step, partial(self._loss, run))
        names = {"lr": "critic_lr", "grad_norm": "critic_grad_norm"}
        named = {names.get(name, name): value for name, value in metrics.items()}
        return named | self._training.peaks()

    def _loss(self, run: Callable[..., Any], micro: LossBatch) -> Loss:
        part, tensor = micro.experience, self._forward.tensor
        assert part.values is not None
        actions = part.sequences.actions
        inputs = ValueInputs(
            values=run(part.sequences),
            old_values=tensor(part.values[actions]),
            returns=tensor(part.returns[actions]),
            weights=tensor(micro.weights[actions]),
            metric_weight=micro.metric_weight,
        )
        return losses.value_loss(inputs, self._objective.value_clip)

    def export(self, directory: Path) -> None:
        with self._training.awake():
            merged = lora.merged(self._model, self._training.weights())
            if self._rank.leads:
                self._write(merged, directory)

    def _write(self, tensors: dict[str, Tensor], directory: Path) -> None:
        head = {value_head.FILE: {f"{self._prefix}.weight": tensors.pop("value_head.weight")}}
        backbone = {name.removeprefix("backbone."): value for name, value in tensors.items()}
        tokenizer = AutoTokenizer.from_pretrained(self._source)
        export.write(self._model.backbone, tokenizer, directory, weights=backbone, beside=head)
