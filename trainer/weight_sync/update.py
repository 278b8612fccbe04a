"""Brings the policy's newest weights to every rollout engine.

The policy sends its weights bucket by bucket, over one of three backends (`backends`). The bytes go
from worker to worker, not through the driver. Every wait has a timeout: an engine that does not
answer is lost, and the pool replaces it.
"""

from __future__ import annotations

from trainer.cluster.worker_group import WorkerGroup
from trainer.types import BrokenGroupError, TrainingError
from trainer.weight_sync.backends import BACKENDS, WeightUpdate, late
from trainer.weight_sync.messages import Memory, ReceiverPool, WeightReceiver, WeightSender


def update_weights(
    policy: WorkerGroup[WeightSender],
    engines: ReceiverPool,
    version: int,
    *,
    wake: bool = False,
    backend: str = "shared_memory",
) -> None:
    """Return once every present engine has the weights; at least one engine is present.

    `wake`: the engines may be asleep. They allocate the memory of weights before the update; before
    they write they also need `wake_cache`. `backend`: what `choose.choose_backend` returned.

    Raises LostWorkerError if the policy is lost, BeyondRepairError if no engine can be replaced.
    """
    weights = WeightUpdate(policy, engines, f"weights of version {version}")
    committed = False
    while not committed:
        engines.welcome(version)
        there = set(engines.present)
        try:
            _update(weights, version, wake=wake, backend=backend)
        except BrokenGroupError:
            if there <= set(engines.present):
                raise
            continue  # without the engines that are lost now
        except TrainingError:
            raise
        except Exception:
            # If the policy died, that is the cause, not what an engine says about it.
            policy.call_rank0(WeightSender.node).result()
            raise
        committed = bool(engines.present)
    engines.committed()


def sleep(engines: ReceiverPool) -> None:
    """Free the engines' memory for others until the next weight update."""
    engines.answers(engines.ask(WeightReceiver.sleep), engines.patience.part, "going to sleep")


def wake_cache(engines: ReceiverPool) -> None:
    """Make engines that have new weights allocate the memory that they need to write."""
    _wake(engines, "cache")


def _update(weights: WeightUpdate, version: int, *, wake: bool, backend: str) -> None:
    if not weights.policy.wait_started(weights.patience.start):
        raise late("starting")
    transfer = BACKENDS[backend](weights)
    transfer.prepare()
    buckets = transfer.offered()
    if wake:
        _wake(weights.engines, "weights")
    weights.answers(weights.engines.ask(WeightReceiver.begin))
    transfer.carry(buckets)
    weights.answers(weights.engines.ask(WeightReceiver.commit, version))
    transfer.finish()


def _wake(engines: ReceiverPool, memory: Memory) -> None:
    asked = engines.ask(WeightReceiver.wake, memory)
    engines.answers(asked, engines.patience.part, f"waking its {memory}")
