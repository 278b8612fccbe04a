"""The reference: the policy before training. The KL is measured against this model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from trainer.algorithms import batching
from trainer.algorithms.division import Part
from trainer.config.layout import Role
from trainer.config.options.parallelism import Sharding
from trainer.models import precision, zero3
from trainer.models.causal_lm import LogProbModel
from trainer.models.gpu_memory import Peaks
from trainer.models.liger import use_liger
from trainer.models.loading import load_causal_lm, on_device, prepare_process
from trainer.models.sequence_parallel import sharing_ranks
from trainer.models.settings import ModelSettings
from trainer.types import ALONE, FloatArray, Metrics, Rank


class ReferenceActor:
    """Each rank holds the whole model, or a shard of it with ZeRO stage 3."""

    def __init__(self, settings: ModelSettings, sharding: Sharding, rank: Rank = ALONE) -> None:
        rank = replace(rank, sharing=settings.sharing)
        self._device = prepare_process(
            deterministic=settings.deterministic, trust_remote_code=settings.trust_remote_code
        )
        self._peaks = Peaks(shares_gpu=settings.shares_gpu)
        sharding = replace(sharding, zpg=1)  # zpg speeds up backward passes, and there are none
        split = zero3.splits(sharding, rank)
        self._moves = settings.offload and not split  # DeepSpeed moves layers to the device itself
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        with self._peaks.phase("load"):
            with zero3.split(sharding, rank, offload=settings.offload):
                model = load_causal_lm(
                    settings.model, dtype, settings.attention, longest=settings.longest
                )
            if settings.liger:
                use_liger(model, self._device)
            if settings.mixed_precision:
                precision.to_bf16(model)
            self._model = model.eval()
            if not self._moves:
                self._model.to(self._device)
            with self._there():
                self._scorer = LogProbModel(model, self._device, settings, sharing_ranks(rank))
        if rank.leads:
            print(f"{Role.REFERENCE}: {self._scorer.attention}", flush=True)
        self._run: Any = self._scorer
        if split:
            from trainer.workers import deepspeed

            self._run = deepspeed.frozen(self._scorer, sharding, offload=settings.offload)
        self._rank = rank

    def log_probs(self, part: Part) -> list[FloatArray]:
        with self._peaks.phase("forward"), self._there():
            return part.by_chunk(self._scorer.log_probs(part, self._run))

    def _there(self) -> AbstractContextManager[None]:
        """Keep the model on its device while the block runs."""
        return on_device(self._model, self._device) if self._moves else nullcontext()

    def peaks(self) -> Metrics:
        return batching.peak_metrics(Role.REFERENCE, self._peaks.taken())
