"""Weights from the policy's process into an engine's, against memcpy of as many bytes.

A randomly initialised Qwen2 of 500 MB in float32 goes from a policy to an engine, over Ray and
through `update_weights` as in a run, version after version; before each, one thread copies as many
bytes from one warm buffer to another. The first version, for which memory is found, is left out.
The value is the median over versions of memcpy's time against the transfer's, of the transformers
engine. vLLM on CPUs loads weights by its own reload: its row is reported, and has no target.
`first_use_seconds` is how much longer the first token takes than the next one.

The same goes from one container to another, where this machine can start containers and has iperf3:
its `to_iperf3` is the transfer's bandwidth against that of one stream of iperf3 between the two.
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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.result import report
from bench.sides import models
from env.http.arguments import positive

TARGET, NETWORK_TARGET = 0.5, 0.7
SHAPE = {
    "vocab_size": 16_384,
    "hidden_size": 768,
    "intermediate_size": 3_072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}
ENGINES = {
    "hf": "trainer.rollout.hf_engine.engine:HFEngine",
    "vllm": "trainer.rollout.vllm_engine:VLLMEngine",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=positive, default=7)
    parser.add_argument("--engine", nargs=2, metavar=("KIND", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        kind, model = arguments.engine
        row = measure(kind, Path(model), arguments.versions, apart=arguments.apart)
        print(json.dumps(row))
        return 0
    from bench.sides import network  # pytest, with its containers, is not in their image

    absent = network.lacking()
    kinds = [kind for kind in ENGINES if kind != "vllm" or find_spec("vllm")]
    with tempfile.TemporaryDirectory(prefix="rc-weights-") as directory:
        model = models.write(Path(directory) / "model", **SHAPE)
        rows = {kind: in_a_process(kind, model, arguments.versions) for kind in kinds}
        link = None if absent else network.measured(model, arguments.versions)
    for kind, row in rows.items():
        print(f"{kind}: {row['gb_per_second']} GB/s, {row['to_memcpy']} of memcpy", flush=True)
    said = f"{link['gb_per_second']} GB/s, {link['to_iperf3']} of iperf3" if link else absent
    print(f"between containers: {said}", flush=True)
    ok = report(
        "weights",
        rows["hf"]["to_memcpy"],
        unit="ratio",
        target=TARGET,
        better="higher",
        detail={
            "versions": arguments.versions,
            "cores": os.cpu_count(),
            "vllm": None,
            **rows,
            "network": link or absent,
            "network_target": NETWORK_TARGET,
        },
        besides=link is None or link["to_iperf3"] >= NETWORK_TARGET,
    )
    return 0 if ok else 1


def in_a_process(kind: str, model: Path, versions: int) -> dict[str, Any]:
    """On a Ray of its own."""
    command = [sys.executable, "-m", "bench.weights", "--engine", kind, str(model)]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray:
        done = subprocess.run(
            [*command, "--versions", str(versions)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": ray},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{kind} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(kind: str, model: Path, versions: int, *, apart: bool) -> dict[str, Any]:
    import numpy as np

    from trainer.cluster.model_size import read_size
    from trainer.rollout.engine_pool import EnginePool
    from trainer.weight_sync import update

    size = read_size(str(model))
    assert size is not None
    source, target = (np.full(4 * size.parameters, value, np.uint8) for value in (1, 0))
    policy, group = started(kind, model, apart=apart)
    engines = EnginePool(group)
    update.update_weights(policy, engines, 1)
    copies, transfers, first_uses = [], [], []
    for version in range(2, versions + 2):
        copies.append(min(seconds(lambda: np.copyto(target, source)) for _ in range(3)))
        transfers.append(seconds(partial(update.update_weights, policy, engines, version)))
        first, second = (seconds(lambda: one_token(group)) for _ in range(2))
        first_uses.append(first - second)
    ratios = [copy / transfer for copy, transfer in zip(copies, transfers, strict=True)]
    return {
        "megabytes": round(source.nbytes / 1e6),
        "memcpy_gb_per_second": round(source.nbytes / statistics.median(copies) / 1e9, 2),
        "gb_per_second": round(source.nbytes / statistics.median(transfers) / 1e9, 2),
        "first_use_seconds": round(max(0.0, statistics.median(first_uses)), 3),
        "to_memcpy": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def one_token(engines: Any) -> None:
    from trainer.config.options.rollout import SamplingSettings
    from trainer.rollout.engine import Engine
    from trainer.types import Request

    sampling = SamplingSettings(max_new_tokens=1)
    engines.call_rank0(Engine.generate, [Request("1+1=", (0,))], sampling).result()


def started(kind: str, model: Path, *, apart: bool) -> tuple[Any, Any]:
    """A policy and an engine, each in a process; `apart`: on the nodes that offer their names."""
    from trainer.algorithms.objectives import PolicyObjective
    from trainer.cluster import placement
    from trainer.cluster.ray_worker_group import RayLauncher
    from trainer.config import layout
    from trainer.config.options.parallelism import VLLMSettings
    from trainer.config.options.rollout import SamplingSettings
    from trainer.rollout.engine import EngineSettings

    pools = [
        layout.ResourcePool(
            groups=(layout.RoleProcesses(role=role, nodes=1, per_node=1),),
            resources={role: 1} if apart else {},
        )
        for role in (layout.Role.POLICY, layout.Role.ENGINE)
    ]
    wanted = layout.Layout(tuple(pools))
    placement.join(wanted)
    launcher = RayLauncher(placement.reserve(wanted), timeout=300)
    learner = models.learner(model, samples=8, longest=64)
    actor = "trainer.workers.policy:PolicyActor"
    engine = EngineSettings(
        model=str(model),
        add_special_tokens=True,
        prompt_max_len=64,
        sampling=SamplingSettings(max_new_tokens=64),
        mixed_precision=False,
        slots=8,
        vllm=VLLMSettings(enforce_eager=True, sync_backend="shared_memory"),
    )
    policy = launcher.launch_ranks("policy", actor, 1, learner, PolicyObjective())
    return policy, launcher.launch("engine", ENGINES[kind], 1, engine)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
