"""Trains one model: mini-batches, micro-batches, optimizer steps, and the training state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contract.launch.rank_times import RankTime
from contract.manifest import WrittenFile
from trainer.algorithms import batching, estimates
from trainer.algorithms.batching import MicroBatchLimits
from trainer.algorithms.division import MicroBatch, Part
from trainer.algorithms.estimates import Outputs, Worth
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
from trainer.models.loading import equal_micro_batches, share_threads
from trainer.types import Experience, FloatArray, IntArray, Metrics, Rank
from trainer.workers.compute_time import ComputeTime
from trainer.workers.pass_check import PassCheck, Update, random_states
from trainer.workers.protocols import Updated
from trainer.workers.settings import LearnerSettings
from trainer.workers.strategy import Strategy
from trainer.workers.weight_check import Held, WeightCheck


@dataclass(frozen=True, slots=True)
class LossBatch:
    """The samples of one micro-batch, with their weights in the loss."""

    experience: Experience
    weights: FloatArray
    """[N] weight of each action in the loss of the whole optimizer step."""
    metric_weight: float
    """Weight of each token in metrics: 1 / action tokens of the whole optimizer step."""
    share: float
    """This micro-batch's part of the samples with actions in the whole optimizer step."""


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

    A rank gets its own samples. Losses are weighted by the whole optimizer step, so the sum of the
    ranks' gradients equals the gradient of a single rank.
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
        self._time = ComputeTime(trained.model, trained.limits, settings, rank)
        self._check = WeightCheck(trained.role, rank, settings.train.weight_check_steps)
        whole = settings.sharding.zero_stage == 0
        weights = [one for one in trained.model.parameters() if one.requires_grad and whole]
        self._passes = PassCheck[LossBatch](trained.role, rank, weights)
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
        """Return this rank's memory peaks since the last call."""
        return batching.peak_metrics(self._role, self._peaks.taken())

    def time(self) -> RankTime:
        """Return how long this rank computed in its updates since the last call."""
        return self._time.taken()

    def train_step(self, part: Part, experience: Experience, step: int, loss_of: LossOf) -> Metrics:
        """Update the model on the rank's samples. Returns the mean metrics of the updates.

        Each rank returns its share of the metrics. Raises TrainingError if a loss or a gradient is
        not finite; that update is not made, or not kept. Raises CorruptedRankError if the rank's
        memory has changed since the last update, or differs from the other ranks' after this one,
        or if a rank computes something else from the same samples than others do.
        """
        self._check.compare(self._held)
        index = self._rank.index
        torch.manual_seed(
            derive(self._settings.train.seed, self._role, step, *([index] if index else []))
        )
        share_threads(self._settings.concurrent_models)
        self._model.train()
        totals: dict[str, float] = defaultdict(float)
        updates = [rows for rows in map(part.plan.acting, part.plan.updates) if len(rows)]
        passes = equal_micro_batches(part, updates, self._limits)
        compared = self._settings.train.pass_check_steps
        compares = bool(compared) and step % compared == 0
        for rows, of_update in zip(updates, passes, strict=True):
            batches = list(self._loss_batches(part, experience, rows, of_update))
            for name, value in self._update(batches, loss_of, compares=compares).items():
                totals[name] += value
            compares = False  # the first update of a step stands for all
        self._model.eval()
        self._check.updated(step, self._held)
        return {name: value / len(updates) for name, value in totals.items()}

    def _update(
        self, batches: Sequence[tuple[LossBatch, bool]], loss_of: LossOf, *, compares: bool
    ) -> Metrics:
        sums: dict[str, Tensor] = {}
        losses, random = [], random_states()
        learning_rate = self._strategy.learning_rate
        for micro, last in batches:
            with self._time.forward(micro.experience.sequences):
                loss = loss_of(micro)
            losses.append(loss.value.detach())
            with self._time.backward():
                self._strategy.backward(loss.value, last=last)
            for name, value in {LOSS: loss.value.detach().double(), **loss.metrics}.items():
                sums[name] = sums[name] + value if name in sums else value
        # Read once for all passes: each reading waits for the device.
        metrics = dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True))
        del metrics[LOSS]
        made = Update(
            [micro for micro, _ in batches],
            lambda micro: loss_of(micro).value,
            random,
            torch.stack(losses).tolist(),
        )
        self._passes.losses(made)
        if compares:
            self._passes.compare(made.first(), "a comparison of passes")
        if not self._rank.speaks:
            metrics = dict.fromkeys(metrics, 0.0)
        norm = self._strategy.step(partial(self._passes.norm, made))
        if self._average:
            self._average.update(self._strategy.updated())
        if self._rank.leads:  # equal on all ranks
            metrics |= {"grad_norm": norm, "lr": learning_rate}
        return metrics

    def _loss_batches(
        self, part: Part, experience: Experience, rows: IntArray, passes: Sequence[MicroBatch]
    ) -> Iterator[tuple[LossBatch, bool]]:
        """Yields what each pass of one optimizer step learns from, and whether it is the last."""
        settings, actions = self._settings, part.plan.actions
        weights = np.zeros(len(actions), dtype=np.float32)
        weights[rows] = token_weights(actions[rows], settings.loss_aggregation, settings.longest)
        metric_weight = 1 / int(actions[rows].sum())
        for number, micro in enumerate(passes, 1):
            last = number == len(passes)
            if micro.idle:
                assert part.spare
                spare = experience.of_nothing(part.spare)
                yield LossBatch(spare, np.zeros_like(spare.advantages), 0.0, 0.0), last
                continue
            own = experience.rows(micro.rows)
            of_actions = np.repeat(weights[part.rows[micro.rows]], own.sequences.actions)
            share = len(micro.rows) / len(rows)
            yield LossBatch(own, of_actions, metric_weight, share), last

    def weights(self) -> dict[str, Tensor]:
        """Return the whole model's tensors; possibly none on ranks other than 0."""
        return self._strategy.whole()

    def result(self) -> dict[str, Tensor]:
        """Return the trained weights: the moving average if there is one, else the model."""
        if self._average:
            return self._average.tensors
        return self.weights()

    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies in the CPU's memory, which no update changes. Copies nothing twice."""
        averaged = self._average.tensors if self._average else {}
        own = self._model.state_dict(keep_vars=True) | averaged
        living = {tensor.data_ptr() for tensor in (*own.values(), *self._model.parameters())}
        return {
            name: tensor.detach().to("cpu", copy=tensor.data_ptr() in living)
            for name, tensor in tensors.items()
        }

    def snapshot(self, step: int, needed: Sequence[int]) -> int:
        """Copy this rank's shard of the state. Returns its size in bytes.

        Raises CorruptedRankError if the state may have changed since the update that made it.
        """
        size = self._staging.take(step, needed, self._state()).bytes
        self._check.compare(self._held)
        return size

    def _held(self) -> Held:
        held = self._strategy.held()
        if not self._average:
            return held
        return replace(held, equal=(*held.equal, *self._average.tensors.values()))

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

        self._check.forget()
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


class LearnerActor(ABC):
    """What policy and critic have in common."""

    _engine: LearnerEngine

    @abstractmethod
    def _trained(self, part: Part, experience: Experience, step: int) -> Metrics:
        """Train on the rank's samples. Returns this rank's share of the metrics."""

    def update(self, part: Part, outputs: Outputs, worth: Worth, step: int) -> Updated:
        known = replace(part, plan=part.plan.where_known(worth.scores))
        metrics = self.learn(known, estimates.experience(part, outputs, worth), step)
        return Updated(metrics, self._engine.time())

    def learn(self, part: Part, experience: Experience, step: int) -> Metrics:
        """Train on the experience of the rank's samples. Returns its share of the metrics."""
        return self._trained(part, experience, step) | self._engine.peaks()

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
