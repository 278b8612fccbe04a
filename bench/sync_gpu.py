"""Weights from a policy to the engine of vLLM on the same GPU, by CUDA IPC, for several buckets.

Both have a process of their own, as in a run with --colocate_all_models. For each size of a bucket
the policy publishes some versions; between them the engine sleeps and wakes. A row has the median
seconds of an update, its bandwidth over the bf16 weights, the seconds of sleep and wake-up, and
the memory that the engine keeps asleep.

Value: the best bandwidth. Without a GPU a tiny model goes through shared memory, to see that it
works.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import models
from bench.weights import seconds
from env.http.arguments import positive
from trainer.cluster import memory_estimate
from trainer.weight_sync import shared_memory
from trainer.workers.policy import PolicyActor

SHARE = 0.35
"""Of the GPU's memory, for the engine."""
NO_GPU = "a GPU: the weights of a tiny model go through shared memory"


class SizedPolicy(PolicyActor):
    """A policy that publishes in buckets of any size."""

    def resize(self, size: int) -> None:
        """`size`: bytes of a bucket."""
        memory_estimate.GPU_BUCKET_BYTES = shared_memory.BUCKET_BYTES = size


def main() -> int:
    arguments = _parser().parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="rc-sync-") as directory:
        shape = models.SHAPES[arguments.model]
        model = models.write(Path(directory) / "model", **shape, max_position_embeddings=512)
        rows = [*measured(model, arguments, on_gpu=on_gpu)]
    report(
        "sync_gpu",
        max(row["gb_per_second"] for row in rows),
        unit="GB/s",
        target=0,
        better="higher",
        detail={"model": arguments.model, "lora": arguments.lora, "rows": rows},
        lacking="" if on_gpu else NO_GPU,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=models.SHAPES, default="1.5B")
    parser.add_argument("--megabytes", type=positive, nargs="+", default=[64, 256, 1024, 2048])
    parser.add_argument("--versions", type=positive, default=3, help="timed for each bucket")
    parser.add_argument("--lora", type=positive, default=0, help="rank: fp32 weights need no room")
    return parser


def measured(
    model: Path, arguments: argparse.Namespace, *, on_gpu: bool
) -> Iterator[dict[str, Any]]:
    from trainer.cluster.model_size import read_size
    from trainer.rollout.engine_pool import EnginePool
    from trainer.weight_sync import update

    size = read_size(str(model))
    assert size is not None
    backend, width = ("ipc", 2) if on_gpu else ("shared_memory", 4)
    with started(model, backend, arguments.lora) as (policy, engines):
        pool = EnginePool(engines)
        pool.wait_started()
        version = 1
        publish = partial(update.update_weights, policy, pool, backend=backend, wake=on_gpu)
        publish(version)
        for megabytes in arguments.megabytes:
            policy.call_ranks(SizedPolicy.resize, megabytes * 2**20).result()
            times: dict[str, list[float]] = {"update": [], "wake": [], "sleep": []}
            for _ in range(arguments.versions):
                if on_gpu:
                    times["sleep"].append(seconds(lambda: update.sleep(pool)))
                version += 1
                times["update"].append(seconds(partial(publish, version)))
                if on_gpu:
                    times["wake"].append(seconds(lambda: update.wake_cache(pool)))
            middle = {name: statistics.median(found) for name, found in times.items() if found}
            row = {
                "megabytes": megabytes,
                **{f"{name}_seconds": round(found, 4) for name, found in middle.items()},
                "gb_per_second": round(width * size.parameters / middle["update"] / 1e9, 3),
                "memory": asleep(pool),
            }
            print(row, flush=True)
            yield row


def asleep(pool: Any) -> dict[str, float]:
    """Peaks of the engine since the last row, in GB."""
    from trainer.types import Measured

    (pending,) = pool.ask(Measured.peaks).values()
    found: dict[str, float] = pending.result()
    return {name: round(value, 3) for name, value in found.items()}


@contextmanager
def started(model: Path, backend: str, lora: int) -> Iterator[tuple[Any, Any]]:
    """A policy and an engine: on one GPU, or on CPUs of their own."""
    import ray

    from trainer.algorithms.objectives import PolicyObjective
    from trainer.cluster import placement
    from trainer.cluster.ray_worker_group import RayLauncher
    from trainer.config import layout
    from trainer.config.options.parallelism import VLLMSettings
    from trainer.config.options.rollout import SamplingSettings
    from trainer.config.options.training import LoRASettings
    from trainer.rollout.engine import EngineSettings

    on_gpu = backend == "ipc"
    groups = [
        layout.RoleProcesses(role=role, nodes=1, per_node=1)
        for role in (layout.Role.POLICY, layout.Role.ENGINE)
    ]
    pools = [tuple(groups)] if on_gpu else [(group,) for group in groups]
    wanted = layout.Layout(tuple(layout.ResourcePool(groups=pool) for pool in pools))
    adapters = LoRASettings(rank=lora, alpha=2 * lora, dropout=0.0, target_modules=("all-linear",))
    learner = models.learner(model, samples=8, longest=64, mixed_precision=on_gpu)
    engine = EngineSettings(
        model=str(model),
        add_special_tokens=True,
        prompt_max_len=64,
        sampling=SamplingSettings(max_new_tokens=64),
        mixed_precision=on_gpu,
        slots=8,
        vllm=VLLMSettings(
            sync_backend=backend,
            gpu_memory_utilization=SHARE if on_gpu else None,
            enable_sleep=on_gpu,
            enforce_eager=not on_gpu,
        ),
    )
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        ray.init(address="local", include_dashboard=False, _temp_dir=directory, log_to_driver=False)
        try:
            launcher = RayLauncher(placement.reserve(wanted), timeout=300.0)
            made = replace(learner, lora=adapters) if lora else learner
            yield (
                launcher.launch_ranks(
                    "policy", "bench.sync_gpu:SizedPolicy", 1, made, PolicyObjective()
                ),
                launcher.launch("engine", "trainer.rollout.vllm_engine:VLLMEngine", 1, engine),
            )
        finally:
            ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
