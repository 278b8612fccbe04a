"""Snapshots of two ranks: the trainer's, and one that gathers whole tensors by DeepSpeed's API."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, distributed

from trainer.types import Rank

STAGES, REPEATS = (1, 2, 3), 3
Figures = dict[str, float]


def of_stages(rank: Rank, model: Path) -> dict[int, dict[str, Figures]]:
    """Return of each stage of ZeRO, and of each way of a snapshot, the figures of this rank."""
    return {stage: _of_stage(rank, model, stage) for stage in STAGES}


def _of_stage(rank: Rank, model: Path, stage: int) -> dict[str, Figures]:
    from tests.support.objectives import policy_objective
    from tests.support.ragged import learn
    from tests.support.ranks import experience, settings
    from trainer.config.options.parallelism import Sharding
    from trainer.workers.policy import PolicyActor

    made = settings(model, Sharding(zero_stage=stage), train_batch_size=12)
    actor = PolicyActor(made, policy_objective(), rank)
    learn(actor, experience(1), 1)  # Adam's moments are no zeros now
    parameters = list(actor._model.parameters())
    count = sum(getattr(one, "ds_numel", one.numel()) for one in parameters)
    share = parameters[rank.index :: rank.world]
    ways: dict[str, Callable[[], object]] = {
        "gathers": lambda: gathered(parameters, {id(one) for one in share}),
        "ours": lambda: actor.snapshot(1),
    }
    return {name: _figures(take, count) for name, take in ways.items()}


def gathered(parameters: list[Any], mine: set[int]) -> list[Tensor]:
    """Return copies of weights and moments of the parameters in `mine`; all ranks gather all."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    kept = []
    for parameter in parameters:
        tensors = [
            safe_get_full_fp32_param(parameter),
            *(safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq")),
        ]
        kept += [tensor.clone() for tensor in tensors if id(parameter) in mine]
    return kept


def _figures(take: Callable[[], object], parameters: int) -> Figures:
    """Return the seconds of a snapshot, and the elements in collectives for each parameter."""
    from tests.support.collectives import Sent

    sent = Sent()
    with sent:
        take()
    times = []
    for _ in range(REPEATS):
        distributed.barrier()
        began = time.perf_counter()
        take()
        times.append(time.perf_counter() - began)
    return {
        "stall_seconds": round(statistics.median(times), 4),
        "elements": round(sent.elements.total() / parameters, 2),
    }
