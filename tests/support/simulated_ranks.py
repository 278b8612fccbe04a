"""Ranks of models that compute nothing, and the bytes that each of them and the driver receives.

Everything goes through a store as pickled bytes, so that no rank sees an object of the driver.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tests.support.local_workers import Done, LocalWorkerGroup
from trainer.algorithms import estimates
from trainer.algorithms.division import Part
from trainer.algorithms.estimates import Outputs, Statistics, Worth
from trainer.cluster.worker_group import Each, Kept, Pending, Pieces
from trainer.config.config import Config
from trainer.config.options.algorithm import AdvantageSettings, KLSettings
from trainer.config.options.training import TrainSettings
from trainer.types import Experience, FloatArray, IntArray, Metrics
from trainer.workers.groups import WorkerGroups


@dataclass(frozen=True)
class Handle:
    """Stands for a stored value."""

    number: int


class Store:
    """Values as bytes in this process."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def put(self, value: Any) -> Handle:
        self._held.append(pickle.dumps(value))
        return Handle(len(self._held) - 1)

    def get(self, handle: Handle) -> Any:
        return pickle.loads(self._held[handle.number])

    def size(self, handle: Handle) -> int:
        return len(self._held[handle.number])


class SilentModel:
    """One rank: what it computes of an action is a function of the action's token."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.learned: list[tuple[IntArray, Experience]] = []
        """Of each update, the samples and what they taught."""

    def log_probs(self, part: Part) -> list[FloatArray]:
        chosen = part.sequences.tokens[part.sequences.action_mask]
        return part.by_chunk((-self._scale * chosen).astype(np.float32))

    values = log_probs

    def statistics(self, part: Part, outputs: Outputs, worth: Worth) -> Statistics:
        return estimates.statistics(part, outputs, worth)

    def update(self, part: Part, outputs: Outputs, worth: Worth, step: int) -> Metrics:
        self.learned.append((part.rows, estimates.experience(part, outputs, worth)))
        return {}


@dataclass
class Traffic:
    """Bytes and seconds since the start."""

    received: list[int]
    """Rank → bytes of the arguments of its calls."""
    returned: int = 0
    """Bytes that came back to the driver."""
    seconds: list[float] = field(default_factory=list)
    """CPU seconds of each call on its rank, and of storing what the rank keeps."""


class SimulatedGroup(LocalWorkerGroup[Any]):
    """A group whose arguments and results go through a store."""

    def __init__(self, models: Sequence[SilentModel], store: Store) -> None:
        super().__init__(models)
        self.models, self._store = models, store
        self.traffic = Traffic([0] * len(models))

    def store(self, value: Any) -> Any:
        return self._store.put(value)

    def call_ranks(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = self._called(method.__name__, args)
        self.traffic.returned += sum(len(pickle.dumps(one)) for one in found)
        return Done(found)

    def call_ranks_keeping(
        self,
        earlier: Pending[list[Any]] | None,
        items: int,
        method: Callable[..., list[Any]],
        *args: Any,
        **kwargs: Any,
    ) -> Kept[Any]:
        found = self._called(method.__name__, args)
        assert {len(one) for one in found} == {items}
        pieces = [self._kept(one) for one in found]
        return Kept(Done([None] * len(self)), pieces)

    def _kept(self, pieces: Sequence[Any]) -> list[Handle]:
        """Store what a rank has computed, as the rank's own process does."""
        began = time.process_time()
        handles = [self._store.put(piece) for piece in pieces]
        self.traffic.seconds.append(time.process_time() - began)
        return handles

    def _called(self, method: str, args: Sequence[Any]) -> list[Any]:
        args = [
            one if isinstance(one, (Each, Handle, int)) else self._store.put(one) for one in args
        ]
        found = []
        for rank, model in enumerate(self.models):
            own = [one[rank] if isinstance(one, Each) else one for one in args]
            taken = [self._taken(rank, one) for one in own]
            began = time.process_time()
            found.append(getattr(model, method)(*taken))
            self.traffic.seconds.append(time.process_time() - began)
        return found

    def _taken(self, rank: int, argument: Any) -> Any:
        if isinstance(argument, Pieces):
            return {role: [self._taken(rank, one) for one in of] for role, of in argument.items()}
        if not isinstance(argument, Handle):
            return argument
        self.traffic.received[rank] += self._store.size(argument)
        return self._store.get(argument)


def workers_of(ranks: dict[str, int], store: Store) -> WorkerGroups:
    """Return groups of so many ranks of each role."""
    scales = {"policy": 0.01, "critic": -0.02, "reference": 0.03}
    groups = {
        role: SimulatedGroup([SilentModel(scales[role]) for _ in range(count)], store)
        for role, count in ranks.items()
    }
    nothing = cast(Any, None)
    return WorkerGroups(
        policy=cast(Any, groups["policy"]),
        critic=cast(Any, groups.get("critic")),
        reference=cast(Any, groups.get("reference")),
        engines=nothing,
        restarts=nothing,
    )


def config_of(
    samples: int, *, updates: int = 1, epochs: int = 1, group: int = 1, sharing: int = 1
) -> Config:
    """Return what the driver reads of the flags while it divides samples: PPO with a reference."""
    train = replace(TrainSettings(), train_batch_size=samples // updates, max_epochs=epochs)
    settings = SimpleNamespace(
        advantage=AdvantageSettings(),
        kl=KLSettings(),
        train=train,
        shaping=SimpleNamespace(normalize_reward=False),
        n_samples_per_prompt=group,
        needs_old_log_probs=True,
        ring_attn_size=sharing,
    )
    return cast(Config, settings)
