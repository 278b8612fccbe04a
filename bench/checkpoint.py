"""What it costs to keep a run safe: checkpoints in the background, snapshots in a peer's memory.

The builtin trainer runs as in a job, on two Ray nodes of this machine, with 0.5 and 2 GB of state
(fp32 weights and Adam's two moments). *Overhead*: all time that the steps around a checkpoint take
longer than the others, against 100 steps: the interval of the guides' commands (--save_steps 100).
*Stall*: for how long training stands still. *Peers*: a step with a snapshot against one without.
A snapshot stalls by what lies between two steps' own work, above what lies there without.
*Save* and *load* against `dd` of as many bytes on the same disk, in the same run: with fsync, and
read back from the page cache as the checkpoint is. The value is the greatest overhead.

*Gathers*: how long two gloo ranks stand still for a snapshot of 0.2 GB of state, and the elements
that they give to collectives for each parameter, at ZeRO 1, 2 and 3. The trainer's
snapshot copies what a rank holds. Its opponent is DeepSpeed's API for whole tensors
(`safe_get_full_fp32_param`, `safe_get_full_optimizer_state`), of which a rank keeps its share.
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
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.result import report
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

TARGET, INTERVAL = 0.02, 100
LAYERS = {"0.5": 3, "2": 12}
"""GB of state → layers of the model."""
GATHERED = TinyModel(hidden_size=1024, layers=1, heads=8)
STEPS, EVERY, WARM = 11, 4, 2
REWARD = """
def reward_func(queries, prompts, labels):
    return [len(set(query)) / 10 for query in queries]
"""
FLAGS = {
    "input_key": "prompt",
    "rollout_batch_size": 4,
    "n_samples_per_prompt": 2,
    "train_batch_size": 8,
    "micro_train_batch_size": 8,
    "generate_max_len": 8,
    "advantage_estimator": "group_norm",
    "init_kl_coef": 0,
    "actor_learning_rate": 1e-6,
    "max_ckpt_num": 1,
}
Row = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--gathers", action="store_true", help="measure nothing else")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        print(json.dumps(loaded(arguments.load)))
        return 0
    gathers = of_snapshots()
    for stage, sides in gathers.items():
        print(f"snapshot at ZeRO {stage}: {sides}", flush=True)
    if arguments.gathers:
        return 0
    rows = {size: measured(LAYERS[size]) for size in arguments.sizes}
    for size, row in rows.items():
        print(f"{size} GB: {', '.join(f'{k} {v:.4g}' for k, v in row.items())}", flush=True)
    ok = report(
        "checkpoint",
        max(row["overhead"] for row in rows.values()),
        unit="ratio",
        target=TARGET,
        better="lower",
        detail={"interval_steps": INTERVAL, "cores": os.cpu_count(), **rows, "gathers": gathers},
    )
    return 0 if ok else 1


def of_snapshots() -> dict[int, dict[str, Row]]:
    """Return of each stage of ZeRO, and of each way of a snapshot, its figures."""
    from bench.sides import snapshots
    from bench.sides.gloo import on_ranks

    with tempfile.TemporaryDirectory(prefix="rc-snapshots-") as directory:
        model = Path(directory) / "model"
        write_model(GATHERED, None, model)
        return on_ranks(2, snapshots.of_stages, model)[0]


def measured(layers: int) -> Row:
    """All figures of one size."""
    from ray.cluster_utils import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="rc-checkpoint-") as directory,
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray,
    ):
        root = Path(directory)
        write_model(TinyModel(hidden_size=1024, layers=layers, heads=8), None, root / "model")
        rows = [json.dumps({"prompt": f"{number:05d} and "}) for number in range(4 * STEPS)]
        (root / "prompts.jsonl").write_text("\n".join(rows))
        (root / "reward.py").write_text(REWARD)
        cluster = Cluster(shutdown_at_exit=False)
        try:
            cluster.add_node(num_cpus=2, temp_dir=ray, include_dashboard=False)
            cluster.add_node(num_cpus=2)
            runs = {
                "disk": run(root, cluster.address, "disk", save_steps=EVERY, peer_snapshot="off"),
                "peers": run(root, cluster.address, "peers", peer_snapshot="auto"),
            }
        finally:
            cluster.shutdown()
        between = {name: gaps(root / name, each) for name, each in runs.items()}
        figures = checkpoints(runs["disk"]) | peers(runs["disk"], runs["peers"])
        figures["peer_stall_ms"] = 1e3 * (between["peers"] - between["disk"])
        return figures | bandwidth(root, runs["disk"])


def run(root: Path, address: str, name: str, **flags: Any) -> list[dict[str, Any]]:
    """A run's events."""
    places = {
        "pretrain": root / "model",
        "prompt_data": root / "prompts.jsonl",
        "remote_rm_url": root / "reward.py",
        "run_dir": root / name,
        "max_steps": STEPS,
    }
    words = [f"--{key}={value}" for key, value in (places | FLAGS | flags).items()]
    log = root / f"{name}.log"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "WANDB_"))}
    with log.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "trainer", *words],
            env=inherited | {"RAY_ADDRESS": address, "PYTHONPATH": str(Path.cwd())},
            stdout=file,
            stderr=file,
        )
    if ended.returncode:
        raise SystemExit(f"{name}: the trainer ended with {ended.returncode}:\n{log.read_text()}")
    journal = (root / name / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in journal]


def steps_of(events: list[dict[str, Any]]) -> dict[int, float]:
    """Step → seconds from the end of the step before to its own."""
    ends = {e["details"]["step"]: at(e) for e in events if e["kind"] == "step"}
    return {step: ends[step] - ends[step - 1] for step in ends if step > WARM}


def gaps(directory: Path, events: list[dict[str, Any]]) -> float:
    """Median seconds between the end of a step's own work and the beginning of the next."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    own = {row["step"]: row["timing/step"] for row in rows if "timing/step" in row}
    return float(statistics.median(wall - own[n] for n, wall in steps_of(events).items()))


def at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def under_way(events: list[dict[str, Any]]) -> list[set[int]]:
    """Of each checkpoint but the last, which nothing follows: the steps that it was written in."""
    made, found = 0, []
    for event in events:
        if event["kind"] == "step":
            made = event["details"]["step"]
        elif event["kind"] == "checkpoint" and event["details"]["step"] < STEPS:
            found.append(set(range(event["details"]["step"] + 1, made + 1)))
    return found


def checkpoints(events: list[dict[str, Any]]) -> Row:
    seconds, writing = steps_of(events), under_way(events)
    clean = [s for step, s in seconds.items() if not any(step in one for one in writing)]
    usual = statistics.median(clean)
    extra = statistics.mean(sum(seconds[step] - usual for step in one) for one in writing)
    stalls = [e["details"]["stall_seconds"] for e in events if e["kind"] == "checkpoint"]
    return {
        "overhead": max(0.0, extra) / (INTERVAL * usual),
        "step_seconds": usual,
        "extra_seconds": extra,
        "stall_ms": 1e3 * statistics.median(stalls[1:]),
        "first_stall_ms": 1e3 * stalls[0],
    }


def peers(without: list[dict[str, Any]], with_them: list[dict[str, Any]]) -> Row:
    told = [event["sentence"] for event in with_them if event["kind"] == "peers"]
    if not any("lie on two of 2 nodes" in sentence for sentence in told):
        raise SystemExit(f"no snapshot was held: {told}")
    usual = checkpoints(without)["step_seconds"]
    each = statistics.median(steps_of(with_them).values())
    return {"peer_step_ratio": each / usual, "peer_seconds_a_step": each - usual}


def bandwidth(root: Path, events: list[dict[str, Any]]) -> Row:
    """GB/s. The last checkpoint is confirmed as soon as it is written: nothing else goes on."""
    last = [event["details"] for event in events if event["kind"] == "checkpoint"][-1]
    size, written = last["bytes"], root / "written"
    count = -(-size // (4 << 20))
    save = size / (last["seconds"] - last["stall_seconds"])
    dd_write = dd(f"if=/dev/zero of={written} bs=4M count={count} conv=fsync", size)
    (share,) = (root / "disk" / "checkpoints" / f"global_step_{STEPS}").glob("policy*.pt")
    dd_read = dd(f"if={share} of=/dev/null bs=4M", size)
    command = [sys.executable, "-m", "bench.checkpoint", "--load", str(share.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = json.loads(done.stdout.splitlines()[-1])
    return {
        "save_gb_per_second": save / 1e9,
        "save_to_dd": save / dd_write,
        "dd_write_gb_per_second": dd_write / 1e9,
        "verify_gb_per_second": size / seconds["verify"] / 1e9,
        "load_gb_per_second": size / seconds["load"] / 1e9,
        "load_to_dd": size / seconds["load"] / dd_read,
        "dd_read_gb_per_second": dd_read / 1e9,
    }


def dd(words: str, size: int) -> float:
    """Bytes per second."""
    began = time.perf_counter()
    subprocess.run(["dd", *words.split()], check=True, capture_output=True)
    return size / (time.perf_counter() - began)


def loaded(directory: Path) -> Row:
    """Seconds to compare a checkpoint's checksums, and to copy its tensors into memory."""
    from contract.manifest import fault_of
    from trainer.checkpoint import state

    began = time.perf_counter()
    assert fault_of(directory) is None
    verified = time.perf_counter()
    content = state.load(directory, "policy")
    moments = [tensor for held in content.adam.values() for tensor in held.values()]
    copies = [tensor.clone() for tensor in (*content.model.values(), *moments)]
    assert copies
    return {"verify": verified - began, "load": time.perf_counter() - verified}


if __name__ == "__main__":
    sys.exit(main())
