"""A head's control port with a run that has told all that there is to tell, for its metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from contract.journal import append_event
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.server import HeadPhase
from entrypoint.cluster.slow_nodes import Stays, Why
from entrypoint.cluster.slow_ranks import Against, Speed
from entrypoint.preflight.changes import Change, HealthKind
from tests.support.control import Head, answers, asking, node_info
from tests.support.waiting import eventually

GPU_NODE = {"gpus": 8, "gpu_memory_bytes": 80 * 10**9}
ROW = {
    "train/reward": 0.5,
    "timing/generate": 3.0,
    "timing/reward": 1.0,
    "timing/step": 5.0,
    "memory/policy_update_gb": 61.5,
    "perf/tokens_per_second": 800.0,
    "perf/reward_call_seconds": 0.25,
}


def write(run: RunFiles) -> None:
    """Two attempts, of which one failed, and a repair."""

    def tell(kind: str, **details: object) -> None:
        append_event(run.journal, kind, f"{kind}!", details)

    tell("start")
    tell("attempt")
    tell("resume", step=0)
    for step in (1, 2, 3):
        tell("step", step=step, tokens=1000)
    tell("checkpoint", step=2)
    tell("engine-replaced")
    tell("refused")
    tell("failure", failure="gpu_fault")
    tell("attempt")
    tell("resume", step=2)
    tell("failure", failure="hang")
    tell("attempt")
    run.metrics.write_text(f"{json.dumps({'step': 3, **ROW})}\n")
    progress = Progress(step=3, total_steps=9, samples=48, attempt=2, checkpoint=2, in_memory=3)
    rewards = replace(progress, reward=0.5, reward_first=0.1, kl=0.1, loss=1.5)
    speed = replace(rewards, eval=0.6, eval_before=0.2, tokens_per_second=800.0, step_seconds=5.0)
    speed.write(run.progress)
    run.run.write_text(json.dumps({"run_id": "r1", "recipe": "builtin", "command": ["--x"]}))


WORSE = Change(HealthKind.PCIE_WIDTH, "GPU 3", "PCIe has x8, and had x16")
SLOW = Speed(
    role="policy",
    rank=2,
    address=node_info("w1").address,
    gpu="",
    against=Against.PEERS,
    times=1.31,
    sure=6.0,
    window=16,
    first=5,
    last=20,
)
"""A rank on the worker w1."""


@contextmanager
def watched(run_dir: Path) -> Iterator[Head]:
    """The head of such a run, with the worker w1, which has joined, and w2, which is silent."""
    head = Head(run_dir)
    write(head.run)
    with head.control:
        eventually(lambda: answers(head.port))
        head.control.max_restarts = 3
        head.control.speeds = [SLOW]
        head.control.staying = [Stays("w1", Why.NO_SPARE, "w1 is slow, and stays")]
        head.control.health.add("w1", [WORSE])
        head.control.phase = HeadPhase.TRAINING
        client = head.client()
        for name, address in (("w1", "127.0.0.3"), ("w2", "127.0.0.4")):
            info = node_info(name, address)
            info = replace(info, inventory=GPU_NODE, warnings=["gpu.ecc"], clock=time.time())
            client.check_in(info, joined=True)
        with asking(head, "w2"):
            pass
        with asking(head, "w1"):
            eventually(lambda: not _is_present(head, "w2"))
            yield head


def _is_present(head: Head, name: str) -> bool:
    nodes = {node["node"]: node for node in head.control.state()["nodes"]}
    return bool(nodes[name]["present"])
