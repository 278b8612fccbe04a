"""The critic: predicts the return at each token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from trainer.algorithms import losses
from trainer.algorithms.division import Part
from trainer.algorithms.losses import LossPart, ValueInputs
from trainer.algorithms.objectives import CriticObjective
from trainer.algorithms.seeds import derive
from trainer.checkpoint.protocol import Directory
from trainer.config.layout import Role
from trainer.models import hf_export as export
from trainer.models import lora, precision, pretrained, value_model, zero3
from trainer.models.balance import balance_of
from trainer.models.forward import Forward
from trainer.models.gpu_memory import Peaks
from trainer.models.liger import use_liger
from trainer.models.loading import in_passes, load_backbone, prepare_process, share_threads
from trainer.models.sequence_parallel import sharing_ranks
from trainer.models.value_model import ValueModel, hidden_size
from trainer.models.vision import vision_of
from trainer.types import ALONE, Experience, FloatArray, Metrics, Rank
from trainer.workers.learner import LearnerActor, LearnerEngine, LearnerModel, LossBatch
from trainer.workers.settings import LearnerSettings


def _backbone(settings: LearnerSettings, rank: Rank, device: torch.device) -> Any:
    """Return the model without its head, which is still on the CPU."""
    made = settings.model
    dtype = torch.bfloat16 if settings.rounds_at_load else torch.float32
    with zero3.split(settings.sharding, rank):
        backbone = load_backbone(made.model, dtype, made.attention, longest=made.longest)
    if made.liger:
        use_liger(backbone, device)
    if settings.rounds_at_load:
        precision.to_bf16(backbone)
    if settings.gradient_checkpointing:
        backbone.gradient_checkpointing_enable()
    if settings.lora.rank:
        lora.adapt(backbone, settings.lora, derive(settings.train.seed, "critic-lora"))
    return backbone


class CriticActor(LearnerActor):
    def __init__(
        self, settings: LearnerSettings, objective: CriticObjective, rank: Rank = ALONE
    ) -> None:
        rank = replace(rank, sharing=settings.model.sharing)
        device = prepare_process(
            deterministic=settings.model.deterministic,
            trust_remote_code=settings.model.trust_remote_code,
        )
        peaks = Peaks(shares_gpu=settings.model.shares_gpu)
        self._source = settings.model.model
        with peaks.phase("load"):
            backbone = _backbone(settings, rank, device).to(device).eval()
            self._forward = Forward(
                backbone,
                device,
                settings.model,
                vision=vision_of(backbone, self._source),
                ranks=sharing_ranks(rank),
            )
        if rank.leads:
            print(f"{Role.CRITIC}: {self._forward.attention}", flush=True)
        self._prefix = value_model.head_prefix(backbone.config, objective.value_head_prefix)
        head = value_model.load_head(self._source, self._prefix, hidden_size(backbone))
        self._model = (
            ValueModel(backbone, self._forward, settings.train.seed, head).to(device).eval()
        )
        made = settings.model
        limits = self._forward.limits(
            settings.train.micro_train_batch_size, settings.train.max_tokens
        )
        trained = LearnerModel(
            role=Role.CRITIC, module=self._model, model=self._model, limits=limits
        )
        self._engine = LearnerEngine(trained, settings, rank, peaks)
        self._limits = self._forward.limits(made.micro_batch_size, made.max_tokens)
        self._concurrent_models = settings.model.concurrent_models
        self._objective = objective
        self._balance = balance_of(backbone, objective.loss.aux_loss_coef, Role.CRITIC)
        self._rank = rank

    def values(self, part: Part) -> list[FloatArray]:
        with self._engine.onloaded("forward") as run:
            share_threads(self._concurrent_models)
            return part.by_chunk(in_passes(run, part, self._limits))

    def _trained(self, part: Part, experience: Experience, step: int) -> Metrics:
        with self._engine.onloaded("update") as run:
            metrics = self._engine.train_step(part, experience, step, partial(self._loss, run))
        names = {"lr": "critic_lr", "grad_norm": "critic_grad_norm"}
        return {names.get(name, name): value for name, value in metrics.items()}

    def _loss(self, run: Callable[..., Any], micro: LossBatch) -> LossPart:
        part, tensor = micro.experience, self._forward.tensor
        assert part.values is not None
        with self._balance.recorded() if self._balance else nullcontext():
            values = run(part.sequences)
        inputs = ValueInputs(
            values=values,
            old_values=tensor(part.values),
            returns=tensor(part.returns),
            weights=tensor(micro.weights),
            metric_weight=micro.metric_weight,
        )
        loss = losses.value_loss(inputs, self._objective.loss.value_clip)
        return self._balance.added(loss, micro.share) if self._balance else loss

    def export(self, directory: Directory) -> None:
        with self._engine.onloaded():
            merged = lora.merged(self._model, self._engine.weights())
            if self._rank.leads:
                self._write(merged, directory)

    def _write(self, tensors: dict[str, Tensor], directory: Directory) -> None:
        from trainer.checkpoint import head_files  # imports Ray

        head = {value_model.HEAD_FILE: {f"{self._prefix}.weight": tensors.pop("value_head.weight")}}
        backbone = {name.removeprefix("backbone."): value for name, value in tensors.items()}
        tokenizer = pretrained.load(AutoTokenizer, self._source)
        with head_files.writing(directory) as out:
            model = self._model.backbone
            files = export.write(model, tokenizer, out.path, weights=backbone, beside=head)
            out.send(files, replace=True)
