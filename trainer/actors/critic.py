"""The critic: how much reward is still to come, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from trainer import losses
from trainer.actors import lora, value_head
from trainer.actors.base import CriticObjective, LearnerSettings, Metrics
from trainer.actors.forward import Forward
from trainer.actors.learner import MicroBatch, Training
from trainer.actors.model import in_passes, prepare_process, scoring_cut, share_threads
from trainer.checkpoint import export
from trainer.losses import Loss
from trainer.seeds import derive
from trainer.types import Experience, FloatArray, Sequences


class ValueModel(nn.Module):
    """A transformer with a linear head in place of the vocabulary."""

    def __init__(self, backbone: Any, seed: int, head: Tensor | None = None) -> None:
        """`head` [1, H]: a trained one; it starts afresh where None."""
        super().__init__()
        self.backbone = backbone
        hidden = hidden_size(backbone)
        self.value_head = nn.Linear(hidden, 1, bias=False)
        if head is not None:
            self.value_head.load_state_dict({"weight": head})
            return
        generator = torch.Generator().manual_seed(derive(seed, "value-head"))
        nn.init.normal_(self.value_head.weight, std=1 / (hidden + 1), generator=generator)

    def forward(self, states: Tensor) -> Tensor:
        """Values [N] of states [N, H]."""
        values: Tensor = self.value_head(states.to(self.value_head.weight.dtype)).squeeze(-1)
        return values


def hidden_size(backbone: Any) -> int:
    size: int = backbone.config.get_text_config().hidden_size
    return size


class CriticActor:
    def __init__(self, settings: LearnerSettings, objective: CriticObjective) -> None:
        device = prepare_process(deterministic=settings.model.deterministic)
        self._source = settings.model.model
        backbone = AutoModel.from_pretrained(
            settings.model.model,
            dtype=torch.float32,
            attn_implementation=settings.model.attention,
        )
        if settings.gradient_checkpointing:
            backbone.gradient_checkpointing_enable()
        if settings.lora is not None:
            lora.adapt(backbone, settings.lora, derive(settings.seed, "critic-lora"))
        head = value_head.load(self._source, objective.value_head_prefix, hidden_size(backbone))
        self._model = ValueModel(backbone, settings.seed, head).to(device).eval()
        self._forward = Forward(
            backbone,
            device,
            mixed_precision=settings.model.mixed_precision,
            packed=settings.model.packing,
        )
        packed = self._forward.packed
        self._training = Training("critic", self._model, settings, packed=packed)
        self._cut = scoring_cut(settings.model, packed=packed)
        self._at_once = settings.model.at_once
        self._objective = objective

    def values(self, sequences: Sequences) -> FloatArray:
        share_threads(self._at_once)
        return in_passes(self._values, sequences, self._cut)

    def _values(self, sequences: Sequences) -> Tensor:
        """[N] value of the state in which each action was chosen."""
        values: Tensor = self._model(self._forward.states(sequences))
        return values

    def update(self, experience: Experience, step: int) -> Metrics:
        metrics = self._training.fit(experience, step, self._loss)
        names = {"lr": "critic_lr", "grad_norm": "critic_grad_norm"}
        return {names.get(name, name): value for name, value in metrics.items()}

    def _loss(self, micro: MicroBatch) -> Loss:
        part, tensor = micro.experience, self._forward.tensor
        assert part.values is not None
        actions = part.sequences.actions
        return losses.value_loss(
            self._values(part.sequences),
            tensor(part.values[actions]),
            tensor(part.returns[actions]),
            tensor(micro.weights[actions]),
            self._objective.value_clip,
            micro.share,
        )

    def save(self, directory: Path) -> None:
        self._training.save(directory)

    def restore(self, directory: Path) -> None:
        self._training.restore(directory)

    def export(self, directory: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(self._source)
        name = f"{self._objective.value_head_prefix}.weight"
        head = {value_head.FILE: {name: self._model.value_head.weight}}
        backbone = self._model.backbone
        export.write(backbone, tokenizer, directory, weights=lora.merged(backbone), beside=head)
