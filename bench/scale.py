"""Time and memory of a policy's update against ranks, ZeRO stages, sequence length and vocabulary.

Value: an update by two ranks over Ray, with one thread each, against the same update in one process
with two threads and neither Ray nor ranks. `to_a_bare_pair` is a stricter ratio: two processes at
once that learn from what each of the ranks takes, with nothing to share, so that what is above 1 is
Ray, the passing on of samples and the sum of the gradients. Sides take turns; ratios are of medians
of one round, and the median of the rounds is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import models

TARGET = 1.05
UPDATES, WARM = 3, 1
SAMPLES, MICRO = 16, 4


@dataclass(frozen=True, slots=True)
class Case:
    ranks: int = 2
    stage: int = 0
    length: int = 256
    vocabulary: int = 8_192


BASE = Case()
CASES = (
    *(replace(BASE, ranks=ranks) for ranks in (1, 2, 4)),
    *(replace(BASE, stage=stage) for stage in (1, 2, 3)),
    *(replace(BASE, length=length) for length in (128, 512)),
    replace(BASE, vocabulary=32_768),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", nargs=3, metavar=("MODEL", "RANK", "RANKS"))
    arguments = parser.parse_args()
    if arguments.bare:
        model, rank, ranks = arguments.bare
        print(json.dumps(bare(Path(model), int(rank), int(ranks))))
        return 0
    with tempfile.TemporaryDirectory(prefix="rc-scale-", dir="/tmp") as directory:
        return compare(Path(directory), arguments.rounds)


def compare(root: Path, rounds: int) -> int:
    from trainer import placement

    # A thread for each rank: more threads than cores would wait for each other.
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(root)}
    placement.join(layout_of(max(case.ranks for case in CASES)))
    turns = [turn(root) for _ in range(rounds)]
    rows = []
    for case in CASES:
        rows.append({**asdict(case), **measured(root, case)})
        print(rows[-1], flush=True)
    one_process, pair = (
        statistics.median(row["over_ray"] / row[side] for row in turns)
        for side in ("one_process", "bare_pair")
    )
    ok = report(
        "scale",
        one_process,
        unit="ratio",
        target=TARGET,
        better="lower",
        detail={
            "to_one_process": round(one_process, 4),
            "to_a_bare_pair": round(pair, 4),
            "seconds": turns,
            "cases": rows,
            "cores": os.cpu_count(),
        },
    )
    return 0 if ok else 1


def turn(root: Path) -> dict[str, float]:
    """Seconds of the same update on every side."""
    model = model_for(root, BASE)
    row = {
        "over_ray": measured(root, BASE)["seconds"],
        "one_process": alone(model, ranks=1),
        "bare_pair": alone(model, ranks=BASE.ranks),
    }
    print(row, flush=True)
    return row


def layout_of(ranks: int) -> Any:
    from trainer.layout import Group, Layout, Pool

    return Layout((Pool(groups=(Group(role="policy", nodes=1, per_node=ranks),)),))


def measured(root: Path, case: Case) -> dict[str, float]:
    """Seconds of an update over Ray, and GB of the fullest rank."""
    import ray
    from ray.util.placement_group import remove_placement_group

    from trainer import placement, shares
    from trainer.actors.base import Policy, PolicyObjective
    from trainer.actors.ray_group import RayLauncher

    placed = placement.reserve(layout_of(case.ranks))
    policy = RayLauncher(placed, timeout=300).launch_ranks(
        "policy",
        "trainer.actors.policy:PolicyActor",
        case.ranks,
        settings_for(model_for(root, case), case),
        PolicyObjective(),
    )
    samples = experience(case)
    said: list[Any] = []

    def update(step: int) -> None:
        said[:] = policy.together(Policy.update, samples, step).result()

    seconds = median_seconds(update)
    remove_placement_group(placed.group)
    while ray.available_resources().get("CPU", 0.0) < ray.cluster_resources()["CPU"]:
        time.sleep(0.1)  # its processes have ended then, and leave the cores to the next
    memory = shares.merged_metrics(said)["policy_update_memory_gb"]
    return {"seconds": round(seconds, 3), "memory_gb": round(memory, 3)}


def alone(model: Path, *, ranks: int) -> float:
    """Seconds of an update by the slowest of as many bare processes, which share the cores."""
    command = [sys.executable, "-m", "bench.scale", "--bare", str(model)]
    environment = os.environ | {"OMP_NUM_THREADS": str(BASE.ranks // ranks)}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(ranks)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in running]
    return max(float(json.loads(text.splitlines()[-1])) for text in said)


def bare(model: Path, rank: int, ranks: int) -> float:
    """Median seconds of an update with the samples that `rank` takes, and no other rank."""
    from trainer import shares
    from trainer.actors.base import PolicyObjective
    from trainer.actors.policy import PolicyActor

    whole = experience(BASE)
    own = whole.rows(shares.of_ranks(whole.sequences.lengths, ranks)[rank])
    settings = replace(settings_for(model, BASE), train_batch_size=len(own.sequences))
    actor = PolicyActor(settings, PolicyObjective())
    return round(median_seconds(lambda step: actor.update(own, step)), 3)


def median_seconds(update: Callable[[int], object]) -> float:
    seconds = []
    for step in range(WARM + UPDATES):
        began = time.perf_counter()
        update(step)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM:])


def settings_for(model: Path, case: Case) -> Any:
    from trainer.actors.base import Sharding

    sharding = Sharding(zero_stage=case.stage)
    settings = models.learner(model, samples=SAMPLES, longest=case.length, sharding=sharding)
    return replace(settings, micro_train_batch_size=MICRO)


def model_for(root: Path, case: Case) -> Path:
    """Of the vocabulary, with a body of four million parameters."""
    path = root / f"model-{case.vocabulary}"
    if path.exists():
        return path
    return models.write(
        path,
        vocab_size=case.vocabulary,
        hidden_size=256,
        intermediate_size=1_024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def experience(case: Case) -> Any:
    """Samples of equal length, so that ranks have equal work."""
    import numpy as np

    from trainer.types import Experience, Sequences

    random = np.random.default_rng(0)
    shape = (SAMPLES, case.length)
    actions = np.broadcast_to(np.arange(case.length) >= case.length // 4, shape)
    advantages = random.normal(size=shape).astype(np.float32)
    tokens = random.integers(0, case.vocabulary, shape)
    return Experience(
        sequences=Sequences(tokens, np.full(SAMPLES, case.length), actions),
        log_probs=None,
        advantages=advantages,
        returns=advantages,
    )


if __name__ == "__main__":
    sys.exit(main())
