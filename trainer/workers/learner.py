"""Training one model: mini-batches, micro-batches, the optimiser, and its state on disk."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from contract.manifest import Written
from trainer.algorithms import batching
from trainer.algorithms.batching import MicroBatchLimits
from trainer.algorithms.losses import Loss, token_weights
from trainer.algorithms.seeds import derive
from trainer.checkpoint import state
from trainer.checkpoint.openrlhf import OpenRLHF, Position
from trainer.checkpoint.staging import Copies, Keep, room
from trainer.checkpoint.state import State
from trainer.models.ema import MovingAverage
from trainer.models.gpu_memory import Peaks
from trainer.models.loading import share_threads
from trainer.models.lora import trained
from trainer.types import Experience, FloatArray, IntArray, Metrics, Rank, TrainingError
from trainer.workers.settings import LearnerSettings
from trainer.workers.strategy import strategy_of

if TYPE_CHECKING:
    from trainer.checkpoint.replication import Receipt, Targets
    from trainer.workers.protocols import Source
if TYPE_CHECKING:
    from trainer.checkpoint.openrlhf import Position
    from trainer.checkpoint.replication import Receipt, Targets
    from trainer.workers.protocols import Source


@dataclass(frozen=True, slots=True)
class LossBatch:
    """Some whole samples of an optimiser step."""

    experience: Experience
    weights: FloatArray
    """[B, T] what each token counts in the loss of the whole optimiser step."""
    metric_weight: float
    """What each token counts in metrics: 1 / action tokens of the whole optimiser step."""

    def idle(self) -> LossBatch:
        """The same samples, but they count nothing."""
        return replace(self, weights=np.zeros_like(self.weights), metric_weight=0.0)


LossOf = Callable[[LossBatch], Loss]


class Training:
    """This rank's part in training a model; `fit` is one training step's share of updates.

    Every rank is given all samples, and finds its own; losses are weighted by the whole optimiser
    step, so the ranks' gradients add up to what one rank alone would find.
    """

    def __init__(
        self,
        role: str,
        module: nn.Module,
        model: nn.Module,
        settings: LearnerSettings,
        rank: Rank,
        *,
        limits: MicroBatchLimits,
        peaks: Peaks,
    ) -> None:
        """`module` is what is called, around `model`, whose parameters are trained.

        `limits`: of a micro-batch of an optimiser step.
        """
        self._role = role
        self._peaks = peaks
        self._model = model
        self._settings = settings
        self._rank = rank
        beta = settings.ema_beta
        self._average = None if beta is None else MovingAverage(model, beta)
        self._strategy = strategy_of(module, model, settings, rank)
        self._copies = Copies()
        self.restored_rate: float | None = None
        """The peak of the learning rate that the restored state was trained with, if known."""
        self._limits = limits

    @contextmanager
    def awake(self, phase: str = "other") -> Iterator[Callable[..., Any]]:
        """The way through the model, which is on its device for so long."""
        with self._peaks.phase(phase):
            self._strategy.wake()
            try:
                yield self._strategy.run
            finally:
                self._strategy.sleep()

    def wake(self) -> None:
        """The model is on its device until `sleep`."""
        self._strategy.wake()

    def sleep(self) -> None:
        self._strategy.sleep()

    def peaks(self) -> Metrics:
        """Of this rank's memory, since it was last asked."""
        return batching.peak_metrics(self._role, self._peaks.taken())

    def fit(self, experience: Experience, step: int, loss_of: LossOf) -> Metrics:
        """Update the model on the samples. Returns the mean metrics of the updates.

        Of several ranks each returns its shares of them. Raises TrainingError where a loss or a
        gradient is not finite; that update is not made, or not kept.
        """
        index = self._rank.index
        torch.manual_seed(
            derive(self._settings.seed, self._role, step, *([index] if index else []))
        )
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
        return {name: value / updates for name, value in totals.items()}

    def _update(self, experience: Experience, rows: IntArray, loss_of: LossOf) -> Metrics:
        metrics: dict[str, float] = defaultdict(float)
        learning_rate = self._strategy.learning_rate
        for micro, last in self._micro_batches(experience, rows):
            loss = loss_of(micro)
            if not math.isfinite(loss.value.item()):
                raise TrainingError(f"the {self._role}'s loss is {loss.value.item()}")
            self._strategy.backward(loss.value, last=last)
            for name, value in loss.metrics.items():
                metrics[name] += value
        norm = self._strategy.step()
        if self._average:
            self._average.update(self._strategy.updated())
        if self._rank.leads:  # they are the same on all ranks
            metrics |= {"grad_norm": norm, "lr": learning_rate}
        return metrics

    def _micro_batches(
        self, experience: Experience, rows: IntArray
    ) -> Iterator[tuple[LossBatch, bool]]:
        """This rank's rows of one optimiser step, in passes of like size; true with the last."""
        settings = self._settings
        actions = experience.sequences.actions
        weights = np.zeros(actions.shape, dtype=np.float32)
        weights[rows] = token_weights(actions[rows], settings.loss_aggregation, settings.longest)
        share = 1 / int(actions[rows].sum())
        passes = batching.rank_micro_batches(experience.sequences, rows, self._limits, self._rank)
        for number, one in enumerate(passes, 1):
            part = experience.rows(one.rows)
            width = part.sequences.actions.shape[1]
            micro = LossBatch(part, weights[one.rows, :width], share)
            yield micro.idle() if one.idle else micro, number == len(passes)

    def _mini_batches(self, samples: int, step: int) -> list[IntArray]:
        """Rows of each optimiser step: every sample once an epoch, in an order of (seed, step)."""
        batches: list[IntArray] = []
        for epoch in range(self._settings.max_epochs):
            seed = derive(self._settings.seed, "mini-batches", step, epoch)
            order = np.random.default_rng(seed).permutation(samples)
            batches += np.split(order, samples // self._settings.train_batch_size)
        return batches

    def weights(self) -> dict[str, Tensor]:
        """The whole model's tensors; on ranks that do not lead possibly none."""
        return self._strategy.whole()

    def result(self) -> dict[str, Tensor]:
        """What training has brought: the moving average where there is one, else the model."""
        if self._average:
            return self._average.tensors
        return self.weights()

    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In the CPU's memory, where no update reaches them; what is a copy stays as it is."""
        averaged = self._average.tensors if self._average else {}
        own = self._model.state_dict(keep_vars=True) | averaged
        living = {tensor.data_ptr() for tensor in (*own.values(), *self._model.parameters())}
        return {
            name: tensor.detach().to("cpu", copy=tensor.data_ptr() in living)
            for name, tensor in tensors.items()
        }

    def snapshot(self, step: int, needed: Sequence[int]) -> int:
        """Copy this rank's share of the state. Returns its bytes."""
        return self._copies.take(step, needed, self._room(), self._state).bytes

    def _state(self, keep: Keep) -> State:
        content = self._strategy.state(keep)
        if self._average:
            tensors = self._average.tensors
            mine = {n: keep(tensors[n]) for n in state.share(tensors, self._rank)}
            content = replace(content, average=mine)
        return content

    def _room(self) -> int:
        """Weights, two moments and an average of every parameter, at most."""
        tensors = trained(self._model)
        mine = [tensors[name] for name in state.share(tensors, self._rank)]
        shapes = ((getattr(t, "ds_numel", t.numel()), t.element_size()) for t in mine)
        averaged = self._average.tensors if self._average else {}
        more = [averaged[name] for name in state.share(averaged, self._rank)]
        return room(shapes, 3) + room(((t.numel(), t.element_size()) for t in more), 1)

    def save(self, step: int, directory: Path) -> Written:
        """Write the copy of `step`; training may go on meanwhile."""
        return state.save(directory, self._role, self._copies.of(step).state(), self._rank)

    def hand_over(self, to: Targets) -> Receipt:
        from trainer.checkpoint import replication

        return replication.hand_over(self._copies.of(to.step), self._role, self._rank.index, to)

    def restore(self, source: Source) -> Position | None:
        content, position = self._load(source)
        self._strategy.restore(content)
        (self.restored_rate,) = content.scheduler.get("base_lrs", [None])[:1]
        if self._average and content.average:
            self._average.restore(content.average)
        elif self._average:  # it was not kept: until now, the model is all that there is to average
            self._average.begin(content.model)
        return position

    def _load(self, source: Source) -> tuple[State, Position | None]:
        """Imports what a process without peers, or without DeepSpeed, does without."""
        if isinstance(source, Path):
            return state.load(source, self._role), None
        if isinstance(source, OpenRLHF):
            from trainer.checkpoint import openrlhf_deepspeed

            return openrlhf_deepspeed.load(source.directories[self._role], self._role)
        from trainer.checkpoint import replication

        return replication.load(source, self._role), None


class Keeper:
    """A Learner, but for its updates."""

    _training: Training

    def snapshot(self, step: int, needed: Sequence[int] = ()) -> int:
        with self._training.awake():
            return self._training.snapshot(step, needed)

    def save(self, step: int, directory: Path) -> Written:
        return self._training.save(step, directory)

    def hand_over(self, to: Targets) -> Receipt:
        return self._training.hand_over(to)

    def restore(self, source: Source) -> Position | None:
        with self._training.awake():
            return self._training.restore(source)

    def restored_rate(self) -> float | None:
        return self._training.restored_rate
