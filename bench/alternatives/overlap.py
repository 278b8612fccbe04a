"""Seconds of an update with and without `--overlap_comm`, on two gloo ranks, at ZeRO 1, 2 and 3.

The trainer leaves it off. DeepSpeed's issues with it: 5545 (open: a data race, at stage 3, too),
8061 (closed: at stages 1 and 2 gradients were reduced before they were complete), 8364 (open: at
stages 1 and 2 the passes wait for the reductions all the same).

On CPUs there are no streams, so seconds say little, and a race cannot happen. The row shows that
the setting computes the same: `equal` says of each stage whether the parameters after three updates
of three passes are the same to the bit. What a GPU must show before it is on by default: with NCCL
on two GPUs and more, equal parameters to the bit after hundreds of updates at the stage, and fewer
seconds of an update than without.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.alternatives.row import Row
from bench.sides.gloo import on_ranks
from trainer.types import Rank

STAGES, UPDATES = (1, 2, 3), 3
NO_GPU = "GPUs: on CPUs nothing overlaps"


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy after its updates."""

    seconds: float
    """Of an update, the median."""
    digest: str
    """Of its weights."""


def measured() -> Row:
    from env.prepare.model import write_model
    from env.prepare.tiny_model import TinyModel

    with tempfile.TemporaryDirectory(prefix="rc-overlap-") as directory:
        model = Path(directory) / "model"
        write_model(TinyModel(hidden_size=256, layers=6, heads=8, max_length=64), None, model)
        of_ranks = on_ranks(2, trained_by_all, model)
    rows = {str(stage): compared([found[stage] for found in of_ranks]) for stage in STAGES}
    return Row(
        unit="s at stage 3",
        alternative=rows["3"]["with_overlap"],
        ours=rows["3"]["without"],
        detail={"updates": UPDATES, "stages": rows},
        lacking=NO_GPU,
    )


def compared(of_ranks: list[dict[bool, Trained]]) -> dict[str, Any]:
    """Return seconds of an update without and with overlap, and whether the bits are the same."""
    return {
        "without": max(found[False].seconds for found in of_ranks),
        "with_overlap": max(found[True].seconds for found in of_ranks),
        "equal": all(found[False].digest == found[True].digest for found in of_ranks),
    }


def trained_by_all(rank: Rank, model: Path) -> dict[int, dict[bool, Trained]]:
    """Return what a rank has trained at each stage, without and with overlap."""
    return {
        stage: {overlap: trained(rank, model, stage, overlap) for overlap in (False, True)}
        for stage in STAGES
    }


def trained(rank: Rank, model: Path, stage: int, overlap: bool) -> Trained:
    from tests.support.objectives import policy_objective
    from tests.support.ragged import learn
    from tests.support.ranks import experience, settings
    from trainer.config.options.parallelism import Sharding
    from trainer.workers.policy import PolicyActor

    # An update is a step of 12 samples: six on a rank, two in a pass.
    made = settings(
        model,
        Sharding(zero_stage=stage, overlap_comm=overlap),
        train_batch_size=12,
        micro_train_batch_size=2,
    )
    actor, times = PolicyActor(made, policy_objective(), rank), []
    for step in range(1, UPDATES + 1):
        began = time.perf_counter()
        learn(actor, experience(step), step)
        times.append(time.perf_counter() - began)
    digest = hashlib.sha256()
    for parameter in actor._engine._strategy.updated():
        digest.update(parameter.detach().numpy().tobytes())
    return Trained(round(statistics.median(times), 4), digest.hexdigest())
