"""Trains one model: mini-batches, micro-batches, optimizer steps, and the training state."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contract.manifest import WrittenFile
from trainer.algorithms import batching
from trainer.algorithms.batching import MicroBatchLimits
from trainer.algorithms.losses import LossPart, token_weights
from trainer.algorithms.seeds import derive
from trainer.checkpoint import state
from trainer.checkpoint.protocol import Directory, Receipt, Source, Targets
from trainer.checkpoint.staging import StagingBuffers
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import whole_of
from trainer.models import zero3
from trainer.models.ema import MovingAverage
from trainer.models.gpu_memory import Peaks
from trainer.models.loading import share_threads
from trainer.types import (
    BoolArray,
    Experience,
    FloatArray,
    IntArray,
    Metrics,
    Rank,
    TrainingError,
)
from trainer.workers.settings import LearnerSettings
from trainer.workers.strategy import Strategy


@dataclass(frozen=True, slots=True)
class LossBatch:
    """The samples of one micro-batch, with their weights in the loss."""

    experience: Experience
    weights: FloatArray
    """[B, T] weight of each token in the loss of the whole optimizer step."""
    metric_weight: float
    """Weight of each token in metrics: 1 / action tokens of the whole optimizer step."""
    share: float
    """This micro-batch's part of the samples with actions in the whole optimizer step."""

    def idle(self) -> LossBatch:
        """Returns the same samples with weight 0."""
        return replace(self, weights=np.zeros_like(self.weights), metric_weight=0.0, share=0.0)


LOSS = "loss"
"""What is minimised, as the policy's metrics have only its parts."""
LossOf = Callable[[LossBatch], LossPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerModel:
    """The model that a learner trains."""

    role: str
    module: nn.Module
    """The module that is called. It contains `model`."""
    model: nn.Module
    """The module whose parameters are trained."""
    limits: MicroBatchLimits
    """Limits of a micro-batch of an optimizer step."""


class LearnerEngine:
    """This rank's part in training a model. `train_step` makes the updates of one training step.

    Every rank gets all samples and finds its own share. Losses are weighted by the whole optimizer
    step, so the sum of the ranks' gradients equals the gradient of a single rank.
    """

    def __init__(
        self, trained: LearnerModel, settings: LearnerSettings, rank: Rank, peaks: Peaks
    ) -> None:
        self._role = trained.role
        self._peaks = peaks
        self._model = trained.model
        self._settings = settings
        self._rank = rank
        beta = settings.train.ema_beta if settings.train.enable_ema else None
        self._average = None if beta is None else MovingAverage(trained.model, beta)
        self._strategy = _strategy_of(trained.module, trained.model, settings, rank)
        self._staging = StagingBuffers()
        self.restored_rate: float | None = None
        """Peak learning rate of the restored state, if known."""
        self._limits = trained.limits
        self.offload()

    @contextmanager
    def onloaded(self, phase: str = "other") -> Iterator[Callable[..., Any]]:
        """Keep the model on its device while the block runs. Yields the forward pass."""
        with self._peaks.phase(phase):
            self._strategy.wake()
            try:
                yield self._strategy.run
            finally:
                self._strategy.sleep()

    def onload(self) -> None:
        """Move the model to its device, until `offload`."""
        self._strategy.wake()

    def offload(self) -> None:
        """Free the GPU's memory that others may use until the next pass."""
        self._strategy.sleep()
        self._peaks.give_back()

    def peaks(self) -> Metrics:
        """Returns this rank's memory peaks since the last call."""
        return batching.peak_metrics(self._role, self._peaks.taken())

    def train_step(self, experience: Experience, step: int, loss_of: LossOf) -> Metrics:
        """Update the model on the samples. Returns the mean metrics of the updates.

        Each rank returns its share of the metrics. Raises TrainingError if a loss or a gradient is
        not finite; that update is not made, or not kept.
        """
        index = self._rank.index
        torch.manual_seed(
            derive(self._settings.train.seed, self._role, step, *([index] if index else []))
        )
        share_threads(self._settings.concurrent_models)
        self._model.train()
        totals: dict[str, float] = defaultdict(float)
        updates = 0
        for rows in self._mini_batches(len(experience.sequences), step):
            if not experience.sequences.action_mask[rows].any():
                continue
            for name, value in self._update(experience, rows, loss_of).items():
                totals[name] += value
            updates += 1
        self._model.eval()
        return {name: value / updates for name, value in totals.items()}

    def _update(self, experience: Experience, rows: IntArray, loss_of: LossOf) -> Metrics:
        sums: dict[str, Tensor] = {}
        learning_rate = self._strategy.learning_rate
        for micro, last in self._micro_batches(experience, rows):
            loss = loss_of(micro)
            self._strategy.backward(loss.value, last=last)
            for name, value in {LOSS: loss.value.detach().double(), **loss.metrics}.items():
                sums[name] = sums[name] + value if name in sums else value
        # Read once for all passes: each reading waits for the device.
        metrics = dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True))
        if not math.isfinite(total := metrics.pop(LOSS)):
            raise TrainingError(f"the {self._role}'s loss is {total}")
        if not self._rank.speaks:
            metrics = dict.fromkeys(metrics, 0.0)
        norm = self._strategy.step()
        if self._average:
            self._average.update(self._strategy.updated())
        if self._rank.leads:  # equal on all ranks
            metrics |= {"grad_norm": norm, "lr": learning_rate}
        return metrics

    def _micro_batches(
        self, experience: Experience, rows: IntArray
    ) -> Iterator[tuple[LossBatch, bool]]:
        """Yields this rank's micro-batches of one optimizer step, and whether each is the last."""
        settings = self._settings
        action_mask = experience.sequences.action_mask
        weights = np.zeros(action_mask.shape, dtype=np.float32)
        weights[rows] = token_weights(
            action_mask[rows], settings.loss_aggregation, settings.longest
        )
        metric_weight = 1 / int(action_mask[rows].sum())
        acting: BoolArray = np.any(action_mask, axis=1)
        found = batching.rank_micro_batches(
            experience.sequences, rows, self._limits, self._rank.data
        )
        for number, micro in enumerate(found, 1):
            part = experience.rows(micro.rows)
            width = part.sequences.action_mask.shape[1]
            share = float(acting[micro.rows].sum() / acting[rows].sum())
            batch = LossBatch(part, weights[micro.rows, :width], metric_weight, share)
            yield batch.idle() if micro.idle else batch, number == len(found)

    def _mini_batches(self, samples: int, step: int) -> list[IntArray]:
        """Returns the rows of each optimizer step: every sample once an epoch, shuffled by seed."""
        batches: list[IntArray] = []
        for epoch in range(self._settings.train.max_epochs):
            seed = derive(self._settings.train.seed, "mini-batches", step, epoch)
            order = np.random.default_rng(seed).permutation(samples)
            batches += np.split(order, samples // self._settings.train.train_batch_size)
        return batches

    def weights(self) -> dict[str, Tensor]:
        """Returns the whole model's tensors; possibly none on ranks other than 0."""
        return self._strategy.whole()

    def result(self) -> dict[str, Tensor]:
        """Returns the trained weights: the moving average if there is one, else the model."""
        if self._average:
            return self._average.tensors
        return self.weights()

    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns copies in the CPU's memory, which no update changes. Copies nothing twice."""
        averaged = self._average.tensors if self._average else {}
        own = self._model.state_dict(keep_vars=True) | averaged
        living = {tensor.data_ptr() for tensor in (*own.values(), *self._model.parameters())}
        return {
            name: tensor.detach().to("cpu", copy=tensor.data_ptr() in living)
            for name, tensor in tensors.items()
        }

    def snapshot(self, step: int, needed: Sequence[int]) -> int:
        """Copy this rank's shard of the state. Returns its size in bytes."""
        return self._staging.take(step, needed, self._state()).bytes

    def _state(self) -> State:
        content = self._strategy.state()
        if self._average:
            tensors = self._average.tensors
            mine = {name: tensors[name] for name in state.share(tensors, self._rank)}
            content = replace(content, average=mine)
        return content

    def save(self, step: int, directory: Directory) -> WrittenFile:
        """Write the copy of `step`. Training may continue meanwhile."""
        from trainer.checkpoint import head_files  # imports Ray

        with head_files.writing(directory) as out:
            copy = self._staging.of(step).state()
            file = state.save(out.path, self._role, copy, self._rank)
            out.send([file])
        return file

    def replicate(self, to: Targets) -> Receipt:
        from trainer.checkpoint import replica_client  # imports Ray

        return replica_client.replicate(self._staging.of(to.step), self._role, self._rank.index, to)

    def restore(self, source: Source) -> None:
        """Restore the state. Ranks need not wait for one another, and read at their own pace."""
        from trainer.checkpoint.source import opened  # imports Ray

        with opened(source, self._role, in_parts=self._reads_parts) as content:
            self._strategy.restore(content)
            (self.restored_rate,) = content.scheduler.get("base_lrs", [None])[:1]
            if self._average and content.average:
                self._average.restore(content.average)
            elif self._average:  # the checkpoint has none: the average begins with the model
                weights = content.model.items()
                self._average.begin((name, whole_of(tensor)) for name, tensor in weights)

    @property
    def _reads_parts(self) -> bool:
        """Return whether this rank needs no tensor of a state as a whole."""
        sharding = self._settings.sharding
        return zero3.splits(sharding, self._rank) and self._average is None


class LearnerActor:
    """What policy and critic have in common: all methods of a Learner but its update."""

    _engine: LearnerEngine

    def snapshot(self, step: int, needed: Sequence[int] = ()) -> int:
        with self._engine.onloaded():
            return self._engine.snapshot(step, needed)

    def save(self, step: int, directory: Directory) -> WrittenFile:
        return self._engine.save(step, directory)

    def replicate(self, to: Targets) -> Receipt:
        return self._engine.replicate(to)

    def restore(self, source: Source) -> None:
        with self._engine.onloaded():
            self._engine.restore(source)

    def restored_rate(self) -> float | None:
        return self._engine.restored_rate


def _strategy_of(
    module: nn.Module, model: nn.Module, settings: LearnerSettings, rank: Rank
) -> Strategy:
    """`module`: the module that is called. `model`: its part whose parameters are trained."""
    if settings.sharding.zero_stage == 0:
        from trainer.workers.ddp import Replicated

        return Replicated(module, model, settings, rank)
    zero3.prepare_deepspeed(rank)
    from trainer.workers.deepspeed import ZeRO

    return ZeRO(module, model, settings, rank)
