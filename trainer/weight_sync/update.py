"""The policy's newest weights to every rollout engine.

The policy gives out its weights part by part, on one of three ways (`ways`); the bytes travel from
actor to actor, not through here. Every wait has an end: an engine that did not answer is missing
from then on, and the pool replaces it.
"""

from __future__ import annotations

from trainer.cluster.worker_group import WorkerGroup
from trainer.rollout.engine import Engine, Memory
from trainer.rollout.engine_pool import EnginePool
from trainer.types import BrokenGroupError, TrainingError
from trainer.weight_sync.backends import WAYS, Journey, late
from trainer.workers.protocols import Policy


def weights(
    policy: WorkerGroup[Policy],
    engines: EnginePool,
    version: int,
    *,
    wake: bool = False,
    backend: str = "shared_memory",
) -> None:
    """Returns once every engine that is present has them; at least one is.

    `wake`: the engines may be asleep. Memory of their weights is taken before the weights come,
    that of the cache only afterwards. `backend`: what `sync.choice` gave.

    Raises LostWorkerError where the policy is lost, BeyondRepairError where no engine can be
    replaced.
    """
    journey = Journey(policy, engines, f"weights of version {version}")
    committed = False
    while not committed:
        engines.welcome(version)
        there = set(engines.present)
        try:
            _update(journey, version, wake=wake, backend=backend)
        except BrokenGroupError:
            if there <= set(engines.present):
                raise
            continue  # without those that are missing now
        except TrainingError:
            raise
        except Exception:
            # What an engine says of a policy that died under it is not the cause.
            policy.call_rank0(Policy.node).result()
            raise
        committed = bool(engines.present)
    engines.committed()


def sleep(engines: EnginePool) -> None:
    """The engines' memory is free for others until the next weights come."""
    engines.answers(engines.ask(Engine.sleep), engines.patience.part, "going to sleep")


def _update(journey: Journey, version: int, *, wake: bool, backend: str) -> None:
    if not journey.policy.wait_started(journey.patience.start):
        raise late("starting")
    way = WAYS[backend](journey)
    way.prepare()
    parts = way.offered()
    if wake:
        _wake(journey.engines, "weights")
    journey.answers(journey.engines.ask(Engine.begin))
    way.carry(parts)
    journey.answers(journey.engines.ask(Engine.commit, version))
    way.finish()
    if wake:
        _wake(journey.engines, "cache")


def _wake(engines: EnginePool, memory: Memory) -> None:
    asked = engines.ask(Engine.wake, memory)
    engines.answers(asked, engines.patience.part, f"waking its {memory}")
