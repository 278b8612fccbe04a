"""Time from the start of three nodes to the first finished training step, against the bare floor.

Floor: `ray start` on three nodes by hand (workers loop on `ray health-check`) and `ray job submit`
of the same trainer with the same flags. Both run in turn, in one process after the other, on the
loopback addresses 127.0.0.2 to 127.0.0.4; the value is the median of the ratios of the pairs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.result import report
from entrypoint.demo import Layout, free_ports, inherited
from entrypoint.process import NODE_MARK, Process, kill, marked
from entrypoint.ray_node import ray_program
from trainer.contract import Progress

NODES = 3
TIMEOUT_SECONDS = 300.0
TARGET = 1.15
MARK = f"bench-boot-{os.getpid()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory(prefix="rollcall-boot-") as directory:
        root = Path(directory)
        data = root / "data"
        prepare = [sys.executable, "-m", "env.prepare", "arithmetic", "--out", str(data)]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        rows = []
        for number in range(pairs + 1):  # the first pair warms the disk cache and is left out
            ours = timed(with_rollcall, root / f"ours-{number}", data)
            floor = timed(by_hand, root / f"floor-{number}", data)
            print(f"pair {number}: rollcall {ours:.1f} s, by hand {floor:.1f} s", flush=True)
            rows.append((ours, floor))
    counted = rows[1:]
    ok = report(
        "boot",
        statistics.median(ours / floor for ours, floor in counted),
        unit="ratio",
        target=TARGET,
        better="lower",
        detail={
            "rollcall_seconds": statistics.median(ours for ours, _ in counted),
            "by_hand_seconds": statistics.median(floor for _, floor in counted),
            "pairs": pairs,
            "cores": os.cpu_count(),
        },
    )
    return 0 if ok else 1


def timed(start: Callable[[Layout, Path, ExitStack], None], root: Path, data: Path) -> float:
    """Seconds from the start to the first finished step; everything is ended afterwards."""
    layout = Layout(root, free_ports())
    layout.run.root.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(clean_up, layout)
        began = time.monotonic()
        start(layout, data, stack)
        while Progress.read(layout.run.progress) is None:
            if time.monotonic() - began > TIMEOUT_SECONDS:
                raise SystemExit(f"no step within {TIMEOUT_SECONDS:.0f} s: see {root}")
            time.sleep(0.05)
        return time.monotonic() - began


def job(layout: Layout, data: Path) -> list[str]:
    return [
        *("--pretrain", str(data / "model"), "--prompt_data", str(data / "train.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "arithmetic"),
        *("--rollout_batch_size", "16", "--train_batch_size", "16", "--generate_max_len", "4"),
        *("--micro_train_batch_size", "16", "--max_steps", "50"),
    ]


def with_rollcall(layout: Layout, data: Path, stack: ExitStack) -> None:
    for number in range(NODES):
        arguments = job(layout, data) if number == 0 else []
        node = Process(
            f"node-{number}",
            [sys.executable, "-m", "entrypoint", "up", "--", *arguments],
            env=inherited() | layout.node(number) | {NODE_MARK: MARK},
            log_to=layout.root / f"node-{number}.log",
        )
        stack.callback(node.stop, 3.0)


def by_hand(layout: Layout, data: Path, stack: ExitStack) -> None:
    """What the guides say to type, without their sleeps."""
    settings = [layout.node(number) for number in range(NODES)]
    gcs = f"{settings[0]['ROLLCALL_NODE_ADDRESS']}:{layout.ports}"
    dashboard = f"http://{settings[0]['ROLLCALL_NODE_ADDRESS']}:{layout.ports + 1}"
    run_dir = ["--run_dir", str(layout.run.root)]
    submit = [ray_program(), "job", "submit", "--address", dashboard, "--no-wait", "--"]
    submit += [sys.executable, "-m", "trainer", *job(layout, data), *run_dir]
    scripts = [
        f"{start_by_hand(layout, 0, '--head')} && {words(submit)}",
        *(
            f"until {ray_program()} health-check --address {gcs}; do sleep 1; done; "
            f"{start_by_hand(layout, number, f'--address={gcs}')}"
            for number in range(1, NODES)
        ),
    ]
    for number, script in enumerate(scripts):
        node = Process(
            f"by-hand-{number}",
            ["/bin/sh", "-c", script],
            env=inherited() | {NODE_MARK: MARK},
            log_to=layout.root / f"by-hand-{number}.log",
        )
        stack.callback(node.stop, 3.0)


def start_by_hand(layout: Layout, number: int, role: str) -> str:
    node = layout.node(number)
    first, _, last = node["ROLLCALL_WORKER_PORTS"].partition("-")
    ports = [
        f"--{name}-port={int(first) + offset}"
        for offset, name in enumerate(
            (
                "node-manager",
                "object-manager",
                "dashboard-agent-grpc",
                "dashboard-agent-listen",
                "metrics-export",
                "runtime-env-agent",
            )
        )
    ]
    if number == 0:
        ports += [f"--port={layout.ports}", f"--dashboard-port={layout.ports + 1}"]
        ports += ["--dashboard-host=0.0.0.0"]
        ports += [f"--ray-client-server-port={int(first) + 6}"]
    return words(
        [
            *(ray_program(), "start", role, *ports),
            f"--node-ip-address={node['ROLLCALL_NODE_ADDRESS']}",
            f"--min-worker-port={int(first) + 8}",
            f"--max-worker-port={last}",
            f"--temp-dir={node['ROLLCALL_RAY_TEMP_DIR']}",
            "--num-cpus=2",
            "--num-gpus=0",
            "--disable-usage-stats",
        ]
    )


def words(argv: list[str]) -> str:
    return shlex.join(argv)


def clean_up(layout: Layout) -> None:
    kill(marked(MARK))
    for number in range(NODES):
        node = layout.node(number)
        kill(marked(f"{node['ROLLCALL_NODE_NAME']}@{node['ROLLCALL_RAY_TEMP_DIR']}"))
        shutil.rmtree(node["ROLLCALL_RAY_TEMP_DIR"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
