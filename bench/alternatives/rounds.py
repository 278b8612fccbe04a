"""A weight update of 64 buckets without bytes, over a real Ray: what the driver's rounds cost.

The alternative waits for the ranks to lend a bucket, then for the engines to read it, and so on
bucket by bucket. A round is: the driver sends calls after it has waited for an answer. The actors
do nothing, so the seconds are those of Ray's messages and of the driver. Each side makes an update
in turn; a number is the median of its updates.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bench.alternatives.row import Row
from tests.support.weight_rounds import Receiver, publish
from trainer.cluster.worker_group import WorkerGroup
from trainer.rollout.engine_pool import EnginePool
from trainer.weight_sync import backends, update
from trainer.weight_sync.backends import IpcBackend
from trainer.weight_sync.messages import BucketSpec, GPUWeightReceiver, WeightSender

BUCKETS, RANKS, ENGINES, UPDATES = 64, 2, 2, 5
GPUS = [f"GPU-{rank}" for rank in range(RANKS)]


class OneByOne(IpcBackend):
    """Sends the calls of a bucket when the engines have read the bucket before."""

    def carry(self, buckets: list[BucketSpec]) -> None:
        found = self._update
        for place, bucket in found.places(buckets):
            handles = found.answer(found.policy.call_ranks(WeightSender.lend, bucket), place)
            own = {
                engine: [handles[rank] for rank in self._lenders[engine]]
                for engine in found.engines.present
            }
            borrow = GPUWeightReceiver.borrow
            asked = {
                engine: found.engines.send(engine, borrow, *lent) for engine, lent in own.items()
            }
            found.answers(asked, place)


SIDES = {"one_by_one": OneByOne, "ipc": IpcBackend}


def measured() -> Row:
    counts = rounds()
    with mock.patch.dict(backends.BACKENDS, SIDES), started() as (policy, engines):
        times = seconds(policy, EnginePool(engines))
    return Row(
        unit="s",
        alternative=statistics.median(times["one_by_one"]),
        ours=statistics.median(times["ipc"]),
        detail={
            "buckets": BUCKETS,
            "ranks": RANKS,
            "engines": ENGINES,
            "rounds": counts,
            "seconds": {side: [round(one, 3) for one in found] for side, found in times.items()},
        },
    )


def rounds() -> dict[str, int]:
    """Return the driver's rounds of an update with each backend."""
    with mock.patch.dict(backends.BACKENDS, SIDES):
        return {
            side: publish(side, BUCKETS, [Receiver(GPUS) for _ in range(ENGINES)]).count
            for side in SIDES
        }


def seconds(policy: WorkerGroup[Any], engines: EnginePool) -> dict[str, list[float]]:
    engines.wait_started()
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for version in range(UPDATES + 1):
        for side, found in times.items():
            began = time.perf_counter()
            update.update_weights(policy, engines, version, backend=side)
            if version:  # in the first one, workers import what they need
                found.append(time.perf_counter() - began)
    return times


@contextmanager
def started() -> Iterator[tuple[WorkerGroup[Any], WorkerGroup[Any]]]:
    """Start a policy and its engines, each rank and engine in a process of Ray."""
    import ray

    from trainer.cluster import placement
    from trainer.cluster.ray_worker_group import RayLauncher
    from trainer.config import layout

    groups = [
        layout.RoleProcesses(role=layout.Role.POLICY, nodes=1, per_node=RANKS),
        layout.RoleProcesses(role=layout.Role.ENGINE, nodes=ENGINES, per_node=1),
    ]
    wanted = layout.Layout(tuple(layout.ResourcePool(groups=(group,)) for group in groups))
    helper = "tests.support.weight_rounds"
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory,
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),
    ):
        ray.init(address="local", include_dashboard=False, _temp_dir=directory, log_to_driver=False)
        try:
            launcher = RayLauncher(placement.reserve(wanted), timeout=300.0)
            yield (
                launcher.launch_ranks("policy", f"{helper}:Sender", RANKS, BUCKETS),
                launcher.launch("engine", f"{helper}:Receiver", ENGINES, GPUS),
            )
        finally:
            ray.shutdown()
