"""Training one model: mini-batches, micro-batches, the optimiser, and its state on disk."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer import packing
from trainer.actors.base import LearnerSettings, Metrics
from trainer.actors.lora import trained
from trainer.actors.model import peak_memory, share_threads
from trainer.aggregation import token_weights
from trainer.average import MovingAverage
from trainer.checkpoint import state
from trainer.losses import Loss
from trainer.optimiser import Optimiser
from trainer.packing import Cut
from trainer.seeds import derive
from trainer.types import Experience, FloatArray, IntArray, TrainingError


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some whole samples of an optimiser step."""

    experience: Experience
    weights: FloatArray
    """[B, T] what each token counts in the loss of the whole optimiser step."""
    share: float
    """What each token counts in metrics: 1 / action tokens of the whole optimiser step."""


LossOf = Callable[[MicroBatch], Loss]


class Training:
    """A model with its optimiser; `fit` is one training step's share of updates."""

    def __init__(
        self, role: str, model: nn.Module, settings: LearnerSettings, *, packed: bool
    ) -> None:
        self._role = role
        self._model = model
        self._settings = settings
        self._optimiser = Optimiser(model, settings.schedule)
        beta = settings.ema_beta
        self._average = None if beta is None else MovingAverage(model, beta)
        self._cut = Cut(
            samples=settings.micro_train_batch_size, tokens=settings.max_tokens, packed=packed
        )

    def fit(self, experience: Experience, step: int, loss_of: LossOf) -> Metrics:
        """Update the model on the samples. Returns the mean metrics of the updates.

        Raises TrainingError where a loss or a gradient is not finite; that update is not made.
        """
        torch.manual_seed(derive(self._settings.seed, self._role, step))
        share_threads(self._settings.at_once)
        self._model.train()
        totals: dict[str, float] = defaultdict(float)
        updates = 0
        for rows in self._mini_batches(len(experience.sequences), step):
            if not experience.sequences.actions[rows].any():
                continue
            for name, value in self._update(experience, rows, loss_of).items():
                totals[name] += value
            updates += 1
        self._model.eval()
        metrics = {name: value / updates for name, value in totals.items()}
        return metrics | {f"{self._role}_memory_gb": peak_memory() / 1e9}

    def _update(self, experience: Experience, rows: IntArray, loss_of: LossOf) -> Metrics:
        metrics: dict[str, float] = defaultdict(float)
        learning_rate = self._optimiser.learning_rate
        for micro in self._micro_batches(experience, rows):
            loss = loss_of(micro)
            if not math.isfinite(loss.value.item()):
                raise TrainingError(f"the {self._role}'s loss is {loss.value.item()}")
            loss.value.backward()  # type: ignore[no-untyped-call]
            for name, value in loss.metrics.items():
                metrics[name] += value
        metrics["grad_norm"] = self._optimiser.step()
        if self._average:
            self._average.update(self._model)
        metrics["lr"] = learning_rate
        return metrics

    def _micro_batches(self, experience: Experience, rows: IntArray) -> Iterator[MicroBatch]:
        """The rows of one optimiser step, in passes of like size."""
        settings = self._settings
        actions = experience.sequences.actions
        weights = np.zeros(actions.shape, dtype=np.float32)
        weights[rows] = token_weights(actions[rows], settings.loss_aggregation, settings.longest)
        share = 1 / int(actions[rows].sum())
        for index in packing.passes(experience.sequences.lengths[rows], self._cut):
            micro = rows[index]
            part = experience.rows(micro)
            if part.sequences.actions.any():
                yield MicroBatch(part, weights[micro, : part.sequences.actions.shape[1]], share)

    def _mini_batches(self, samples: int, step: int) -> list[IntArray]:
        """Rows of each optimiser step: every sample once an epoch, in an order of (seed, step)."""
        batches: list[IntArray] = []
        for epoch in range(self._settings.max_epochs):
            seed = derive(self._settings.seed, "mini-batches", step, epoch)
            order = np.random.default_rng(seed).permutation(samples)
            batches += np.split(order, samples // self._settings.train_batch_size)
        return batches

    @property
    def result(self) -> Any:
        """What training has brought: the moving average where there is one, else the model."""
        return self._average.model if self._average else self._model

    def save(self, directory: Path) -> None:
        content = {"model": trained(self._model), "optimiser": self._optimiser.state_dict()}
        if self._average:
            content["average"] = self._average.state_dict()
        state.save(directory / f"{self._role}.pt", content)

    def restore(self, directory: Path) -> None:
        content = state.load(directory / f"{self._role}.pt")
        state.check_fits(content["model"], trained(self._model))
        self._model.load_state_dict(content["model"], strict=False)
        self._optimiser.load_state_dict(content["optimiser"])
        if self._average and "average" in content:
            self._average.load_state_dict(content["average"])
