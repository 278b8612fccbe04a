"""Several ranks of one model in processes of their own, and samples for them to learn from."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from contract.launch.rank_times import RankTime
from tests.support.collectives import Sent
from tests.support.learners import Weights, weights_of
from tests.support.objectives import policy_objective
from tests.support.ragged import learn, part_of, sequences_of, together
from tests.support.train_settings import take_train_settings
from trainer.algorithms import batching
from trainer.algorithms.objectives import CriticObjective
from trainer.checkpoint import state
from trainer.checkpoint.protocol import Directory
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import whole_of
from trainer.cluster import memory_estimate
from trainer.cluster.worker_group import WorkerGroup
from trainer.config import architecture
from trainer.config.options.algorithm import KLSettings, LossSettings
from trainer.config.options.optimizer import OptimizerSettings
from trainer.config.options.parallelism import Sharding
from trainer.config.options.training import LoRASettings
from trainer.models import zero3
from trainer.models.settings import ModelSettings
from trainer.types import (
    CorruptedRankError,
    Experience,
    FloatArray,
    Metrics,
    Rank,
    TrainingError,
)
from trainer.workers.settings import LearnerSettings

ROLES = ("policy", "critic")
ADAPTERS = LoRASettings(rank=2, alpha=4, dropout=0.0, target_modules=("all-linear",))


@dataclass(frozen=True, slots=True)
class Said:
    """What one rank returned in a lesson."""

    before: FloatArray
    metrics: list[Metrics]
    after: FloatArray


class Workbench:
    """A process that holds one model after another: as a rank of whatever is asked for."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._actor: Any = None

    def process(self) -> int:
        return os.getpid()

    def build(self, role: str, settings: LearnerSettings) -> None:
        from trainer.workers.critic import CriticActor
        from trainer.workers.policy import PolicyActor
        from trainer.workers.reference import ReferenceActor

        if role == "policy":
            objective = policy_objective(
                entropy_loss_coef=0.01, aux_loss_coef=0.1, kl=KLSettings(estimator="k3")
            )
            self._actor = PolicyActor(settings, objective, self._rank)
        elif role == "critic":
            self._actor = CriticActor(
                settings,
                CriticObjective(LossSettings(value_clip=0.2, aux_loss_coef=0.1)),
                self._rank,
            )
        else:
            self._actor = ReferenceActor(settings.model, settings.sharding, self._rank)

    def forget_architectures(self) -> None:
        """A model that nobody knows is left to its trial."""
        architecture.STATEFUL = frozenset()

    def sleep_between_calls(self) -> None:
        """As on a GPU with --deepspeed_enable_sleep."""
        self._actor._engine._strategy._sleeps = True

    def stays_awake(self) -> list[str]:
        """The weights, or parts of them, that are where they were when the model falls asleep."""
        with self._actor._engine.onloaded():
            awake = self._places()
        asleep = self._places()
        return [name for name, place in asleep.items() if place == awake[name]]

    def _places(self) -> dict[str, int]:
        named = self._actor._model.named_parameters()
        return {name: getattr(one, "ds_tensor", one).data_ptr() for name, one in named}

    def lesson(self, steps: Sequence[int]) -> Said:
        """Score the samples, train on them for some steps, score them again."""
        before = self._score()
        metrics = [learn(self._actor, experience(step), step) for step in steps]
        return Said(before, metrics, self._score())

    def reduced(self, step: int) -> float:
        """Elements that `all_reduce` adds up in a step, for each of the model's."""
        counted = 0
        known = dist.all_reduce

        def counting(tensor: Tensor, *args: Any, **options: Any) -> Any:
            nonlocal counted
            counted += tensor.numel()
            return known(tensor, *args, **options)

        with mock.patch.object(dist, "all_reduce", counting):
            learn(self._actor, experience(step), step)
        elements: int = sum(one.numel() for one in self._actor._model.parameters())
        return counted / elements

    def sent_in_a_snapshot(self) -> int:
        """Elements that this rank gives to collectives in a snapshot."""
        sent = Sent()
        with sent:
            self._actor.snapshot(1)
        return sent.elements.total()

    def flip(self, ranks: Sequence[int], kind: str) -> None:
        """Flip a bit in the memory of some ranks: of weights, of their masters, of moments."""
        if self._rank.index in ranks:
            flip_one(self._actor._engine._strategy, kind)

    def miscompute(self, ranks: Sequence[int], kind: str) -> None:
        """Have the optimizer of some ranks write a wrong bit in each of their updates."""
        strategy = self._actor._engine._strategy
        step = strategy.step

        def wrong(look: Any) -> float:
            norm: float = step(look)
            flip_one(strategy, kind)
            return norm

        if self._rank.index in ranks:
            strategy.step = wrong

    def slow_down(self, ranks: Sequence[int], seconds: float) -> None:
        """Have a linear layer of some ranks take longer in each of its passes."""
        if self._rank.index in ranks:
            layers = (m for m in self._actor._model.modules() if isinstance(m, nn.Linear))
            layer: Any = next(layers)
            compute = layer.forward

            def late(states: Tensor) -> Tensor:
                time.sleep(seconds)
                computed: Tensor = compute(states)
                return computed

            layer.forward = late

    def times(self, step: int) -> RankTime:
        """Train on a step's samples. Returns how long this rank computed."""
        learn(self._actor, experience(step), step)
        time: RankTime = self._actor._engine.time()
        return time

    def compare(self) -> str:
        """What the check of this rank's memory says."""
        engine = self._actor._engine
        return _said(lambda: engine._check.compare(engine._held))

    def teach(self, step: int) -> str:
        """Train on a step's samples. Returns the error of a rank whose bits are others."""
        return _said(lambda: learn(self._actor, experience(step), step))

    def disturb(self, ranks: Sequence[int], where: str, bit: int, times: int) -> None:
        """Have some ranks flip a bit of one number, `times` times: where an activation or a
        gradient has just been written to their memory."""
        if self._rank.index not in ranks:
            return
        model = self._actor._engine._model

        def flipped(tensor: Tensor) -> None:
            nonlocal times
            if times:
                times -= 1
                numbers = tensor.detach().reshape(-1)
                # From 1 to 2, one bit makes a number infinite, or none at all.
                fit = ((numbers.abs() >= 1) & (numbers.abs() < 2)).nonzero().flatten().tolist()
                place = next((one for one in fit if one >= len(numbers) // 2), len(numbers) // 2)
                numbers.view(torch.int32)[place] ^= 1 << bit

        if where == "activation":
            # After the last norm: one before it would make a huge number small again.
            *_, module = (one for name, one in model.named_modules() if name.endswith("norm"))
            module.register_forward_hook(lambda *found: flipped(found[2]))
        else:
            weight = next(one for one in model.parameters() if one.requires_grad)
            weight.register_hook(flipped)

    def learns(self, steps: Sequence[int], spoiled: bool = False) -> str:
        """Train on the samples of some steps. Returns the error that ended it.

        `spoiled`: the advantages of the last step are not finite.
        """
        for step in steps:
            of = experience(step)
            if spoiled and step == steps[-1]:
                of = replace(of, advantages=of.advantages * np.float32(np.nan))
            try:
                learn(self._actor, of, step)
            except TrainingError as error:
                return f"{type(error).__name__}: {error}"
        return ""

    def takes(self, seconds: float) -> tuple[float, float]:
        """When it began and ended, by the machine's clock."""
        began = time.monotonic()
        time.sleep(seconds)
        return began, time.monotonic()

    def gives(self, items: int) -> list[FloatArray]:
        """Arrays that do not fit into a message of Ray."""
        return [np.full(100_000, 10 * self._rank.index + item, np.float32) for item in range(items)]

    def gets(self, kept: Mapping[str, Sequence[FloatArray]], own: str) -> list[float]:
        """The first number of what the ranks of each role gave, and what this rank got alone."""
        return [float(array[0]) for arrays in kept.values() for array in arrays] + [float(own)]

    def fails(self) -> None:
        raise ValueError("it fails")

    def held(self) -> float:
        """The share of its model's elements that this rank holds."""
        of_each = list(self._actor._model.parameters())
        whole: int = sum(getattr(one, "ds_numel", one.numel()) for one in of_each)
        mine: int = sum(getattr(one, "ds_tensor", one).numel() for one in of_each)
        return mine / whole

    def build_watched(self, role: str, settings: LearnerSettings) -> int:
        """Return the most bytes held meanwhile, without the pages of files, which are lent."""
        before, most, done = _held(), 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.wait(0.002):
                most = max(most, _held() - before)

        watching = threading.Thread(target=watch)
        watching.start()
        self.build(role, settings)
        done.set()
        watching.join()
        return most

    def scores(self) -> FloatArray:
        return self._score()

    def _score(self) -> FloatArray:
        score = getattr(self._actor, "log_probs", None) or self._actor.values
        scored: list[FloatArray] = score(part_of(experience(0).sequences, self._actor._rank.data))
        return np.concatenate(scored)

    def save(self, directory: Path) -> None:
        self._actor.snapshot(1)
        self._actor.save(1, directory)

    def restore(self, directory: Directory) -> None:
        self._actor.restore(directory)

    def export(self, directory: Path) -> None:
        self._actor.export(directory)

    def in_parts(self, size: int) -> Weights:
        """What this rank has whole of each part that leaves its GPU, of `size` bytes each."""
        memory_estimate.GPU_BUCKET_BYTES = size
        found: Weights = {}
        for part in self._actor.announce():
            with self._actor._offered.whole(part) as tensors:
                found |= {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        self._actor.withdraw()
        return found

    def torn(self, times: int) -> int:
        """How often a weight differs, of all gathered at once, from what it is gathered alone."""
        parameters = list(self._actor._model.parameters())
        alone = []
        for parameter in parameters:
            with zero3.whole([parameter]):
                alone.append(parameter.detach().clone())
        count = 0
        for _ in range(times):
            with zero3.whole(parameters):
                count += sum(
                    not torch.equal(one, other)
                    for one, other in zip(parameters, alone, strict=True)
                )
        return count

    def weights(self) -> Weights:
        return weights_of(self._actor)


def _said(act: Callable[[], Any]) -> str:
    try:
        act()
    except CorruptedRankError as error:
        return str(error)
    return ""


def flip_one(strategy: Any, kind: str) -> None:
    """Flip one bit of the last tensor of a kind that this rank keeps between updates."""
    share = strategy.state()
    of_kind = {
        "weights": [*strategy._model.parameters()],
        "masters": [*share.model.values()],
        "moments": [held["exp_avg"] for held in share.adam.values()],
    }
    tensor = of_kind[kind][-1]
    tensor = getattr(tensor, "ds_tensor", tensor).detach()
    tensor.reshape(-1).view(torch.uint8)[1] ^= 4


def _held() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def saved_in(directory: Path, role: str) -> State:
    """What all ranks together saved, with the values of all tensors."""
    found = state.load(directory, role)
    return State(
        model={name: whole_of(tensor) for name, tensor in found.model.items()},
        adam={name: {k: whole_of(v) for k, v in held.items()} for name, held in found.adam.items()},
        scheduler=found.scheduler,
        average=found.average,
    )


def taught(
    bench: WorkerGroup[Workbench], role: str, directory: Path, made: Any
) -> tuple[Said, State]:
    """What all ranks together said in a lesson of two steps, and what they saved after it."""
    directory.mkdir(parents=True)
    bench.call_ranks(Workbench.build, role, made).result()
    of_each = bench.call_ranks(Workbench.lesson, [1, 2]).result()
    bench.call_ranks(Workbench.save, directory).result()
    return whole(of_each), saved_in(directory, role)


def whole(of_each: list[Said]) -> Said:
    sequences = experience(0).sequences
    return Said(
        together([said.before for said in of_each], sequences),
        [
            batching.combine_metrics(step)
            for step in zip(*(s.metrics for s in of_each), strict=True)
        ],
        together([said.after for said in of_each], sequences),
    )


def settings(model: Path, sharding: Sharding, **changes: Any) -> LearnerSettings:
    own = [name for name in ("mixed_precision", "packing", "sharing") if name in changes]
    of_model = {"mixed_precision": False} | {name: changes.pop(name) for name in own}
    values: dict[str, Any] = {
        "train_batch_size": 6,
        "micro_train_batch_size": 1,
        "loss_aggregation": "token",
        "longest": 8,
        "max_epochs": 1,
        "seed": 3,
        "gradient_checkpointing": False,
        **changes,
    }
    return LearnerSettings(
        model=ModelSettings(model=str(model), micro_batch_size=2, temperature=0.7, **of_model),
        updates=12,
        optimizer=OptimizerSettings(
            learning_rate=1e-3,
            lr_scheduler="linear",
            lr_warmup_ratio=0.25,
            l2=0.1,
            max_norm=0.3,
        ),
        sharding=sharding,
        train=take_train_settings(values),
        **values,
    )


def experience(step: int) -> Experience:
    """Twelve samples of a step: of different lengths, one with nothing to learn from."""
    random = np.random.default_rng(step)
    lengths = random.permutation(np.arange(3, 15))
    shape = (12, int(lengths.max()))
    place = np.arange(shape[1])
    action_mask = (place >= 2) & (place < lengths[:, None])
    action_mask[random.integers(12)] = False

    def number(scale: float) -> FloatArray:
        return random.normal(scale=scale, size=shape)[action_mask].astype(np.float32)

    return Experience(
        sequences=sequences_of(
            random.integers(3, 12, shape), lengths, action_mask, number(0.1) - 2
        ),
        old_log_probs=number(0.1) - 2,
        advantages=number(1.0),
        returns=number(1.0),
        values=number(0.5),
        ref_log_probs=number(0.1) - 2,
        kl_coef=0.1,
    )
