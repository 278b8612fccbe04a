"""Time from the start of all nodes to the first finished training step, against the bare floor.

Floor: `ray start` on the head, `ray start` on all workers in the moment in which the head's port
answers, and the same trainer with the same flags, submitted by Ray's REST interface in the moment
in which the last of them has joined: the guides' steps by a hand that never waits too long, and
without the imports of `ray job submit`. Each other pair begins with the floor; the value is the
median of the ratios of the pairs.

`--on host` (the default): on the loopback addresses 127.0.0.2 to 127.0.0.4. `--on slurm`: as jobs
of a real Slurm on this machine, from `sbatch` on. `--on compose`: as containers, from
`podman-compose up` on; here `--nodes` may be more than 3.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.result import report
from bench.sides import compose, rest_submit, slurm
from contract.files.child_variables import NODE_MARK
from contract.progress import Progress
from entrypoint.commands.demo import PORTS, Layout, inherited
from entrypoint.net import sockets, wait
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.process import Process, find_marked, kill
from entrypoint.processes.programs import beside_interpreter
from env.http.arguments import positive
from tests.support import slurm_site

NODES = 3
TIMEOUT_SECONDS = 300.0
TARGETS = {"host": 1.15, "slurm": 1.05, "compose": 1.05}
LACKING = {"slurm": slurm_site.missing, "compose": compose.missing}
"""What a place asks of this machine; the host needs nothing."""
Side = Callable[[Path, list[str]], float]
"""From a directory of its own and the job's flags to seconds."""
MARK = f"bench-boot-{os.getpid()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=positive, default=3)
    parser.add_argument("--on", choices=TARGETS, default="host")
    parser.add_argument("--nodes", type=positive, default=NODES)
    given = parser.parse_args()
    if given.nodes < 2 or (given.on != "compose" and given.nodes != NODES):
        parser.error(f"--on {given.on} has {NODES} nodes; --on compose 2 or more")
    lacking = LACKING[given.on]() if given.on in LACKING else None
    rows = [] if lacking else measured(given)
    ok = report(
        "boot" if given.on == "host" else f"boot on {given.on}",
        statistics.median(ours / floor for ours, floor in rows) if rows else 0.0,
        unit="ratio",
        target=TARGETS[given.on],
        better="lower",
        detail={
            "rollcall_seconds": statistics.median(ours for ours, _ in rows) if rows else None,
            "by_hand_seconds": statistics.median(floor for _, floor in rows) if rows else None,
            "pairs": len(rows),
            "nodes": given.nodes,
            "cores": os.cpu_count(),
            "tini": bool(under_tini()),
        },
        lacking=lacking or "",
    )
    return 0 if ok else 1


def measured(given: argparse.Namespace) -> list[tuple[float, float]]:
    """Seconds of rollcall and by hand, for each pair."""
    rows, place = [], given.on
    with tempfile.TemporaryDirectory(prefix="rollcall-boot-") as directory, ExitStack() as stack:
        root = Path(directory)
        data = root / "data"
        prepare = [sys.executable, "-m", "env.prepare", "arithmetic", "--out", str(data)]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        flags = job(data)
        sides: tuple[Side, Side] = partial(timed, with_rollcall), partial(timed, by_hand)
        if place == "slurm":
            site = stack.enter_context(slurm_site.SlurmSite(root))
            sides = (
                partial(slurm.timed, site, slurm_site.SCRIPT),
                partial(slurm.timed, site, slurm.BY_HAND),
            )
        elif place == "compose":
            flags = job(Path(compose.DATA))
            sides = (
                partial(compose.timed, compose.shipped(given.nodes), data),
                partial(compose.timed, compose.by_hand(given.nodes), data),
            )
        for number in range(given.pairs + 1):  # the first pair warms the disk cache and is left out
            order = (0, 1) if number % 2 == 0 else (1, 0)
            took = {n: sides[n](root / f"{('ours', 'floor')[n]}-{number}", flags) for n in order}
            print(f"pair {number}: rollcall {took[0]:.1f} s, by hand {took[1]:.1f} s", flush=True)
            rows.append((took[0], took[1]))
    return rows[1:]


def timed(
    start: Callable[[Layout, list[str], ExitStack], list[Process]], root: Path, flags: list[str]
) -> float:
    """Seconds from the start to the first finished step; everything is ended afterwards."""
    with ExitStack() as stack:
        layout = Layout(root, stack.enter_context(PortBlock(PORTS)))
        layout.run.root.mkdir(parents=True)
        stack.callback(clean_up, layout)
        began = time.monotonic()
        nodes = start(layout, flags, stack)
        while Progress.read(layout.run.progress) is None:
            if time.monotonic() - began > TIMEOUT_SECONDS:
                raise SystemExit(f"no step within {TIMEOUT_SECONDS:.0f} s")
            for node in nodes:
                if node.exit_code:
                    raise SystemExit(f"{node.name} ended with {node.exit_code}:\n{node.tail()}")
            time.sleep(0.05)
        return time.monotonic() - began


def job(data: Path) -> list[str]:
    return [
        *("--pretrain", str(data / "model"), "--prompt_data", str(data / "train.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "arithmetic"),
        *("--rollout_batch_size", "16", "--train_batch_size", "16", "--generate_max_len", "4"),
        *("--micro_train_batch_size", "16", "--max_steps", "50"),
    ]


def with_rollcall(layout: Layout, flags: list[str], stack: ExitStack) -> list[Process]:
    nodes = []
    for number in range(NODES):
        arguments = flags if number == 0 else []
        node = Process(
            f"node-{number}",
            [*under_tini(), sys.executable, "-m", "entrypoint", "up", "--", *arguments],
            env=inherited() | layout.node(number) | {NODE_MARK: MARK},
            log_to=layout.root / f"node-{number}.log",
        )
        stack.callback(node.stop, 3.0)
        nodes.append(node)
    return nodes


def under_tini() -> list[str]:
    """What the image starts the entrypoint with; this machine's own first process may reap late."""
    tini = shutil.which("tini")
    return [tini, "-s", "--"] if tini else []


def by_hand(layout: Layout, flags: list[str], stack: ExitStack) -> list[Process]:
    """What the guides say to type, without their sleeps."""
    gcs = layout.node(0)["ROLLCALL_NODE_ADDRESS"], layout.ports
    head = started_by_hand(layout, 0, "--head", stack)
    while not listens(*gcs):
        time.sleep(0.05)
    address = "--address={}:{}".format(*gcs)
    workers = [started_by_hand(layout, number, address, stack) for number in range(1, NODES)]
    for node in (head, *workers):
        if node.wait(TIMEOUT_SECONDS) != 0:
            raise SystemExit(f"{node.name} did not start:\n{node.tail()}")
    submit = [sys.executable, rest_submit.__file__, f"http://{gcs[0]}:{layout.ports + 1}"]
    submit += [sys.executable, "-m", "trainer", *flags]
    submit += ["--run_dir", str(layout.run.root)]
    return [typed(layout, "submit", submit, stack)]


def listens(host: str, port: int) -> bool:
    try:
        sockets.connect(host, port)
    except wait.NotYetError:
        return False
    return True


def started_by_hand(layout: Layout, number: int, role: str, stack: ExitStack) -> Process:
    """`ray start`, which ends once its node has joined, leaving Ray's daemons behind."""
    return typed(layout, f"by-hand-{number}", ray_start(layout, number, role), stack)


def ray_start(layout: Layout, number: int, role: str) -> list[str]:
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
    return [
        *(beside_interpreter("ray"), "start", role, *ports),
        f"--node-ip-address={node['ROLLCALL_NODE_ADDRESS']}",
        f"--min-worker-port={int(first) + 8}",
        f"--max-worker-port={last}",
        f"--temp-dir={node['ROLLCALL_RAY_TEMP_DIR']}",
        "--num-cpus=2",
        "--num-gpus=0",
        "--disable-usage-stats",
    ]


def typed(layout: Layout, name: str, command: list[str], stack: ExitStack) -> Process:
    process = Process(
        name,
        command,
        # Else process titles overwrite the mark, and agents live on to slow the next run.
        env=inherited() | {NODE_MARK: MARK, "SPT_NOENV": "1"},
        log_to=layout.root / f"{name}.log",
    )
    stack.callback(process.stop, 3.0)
    return process


def clean_up(layout: Layout) -> None:
    kill(find_marked(MARK))
    for number in range(NODES):
        node = layout.node(number)
        kill(find_marked(f"{node['ROLLCALL_NODE_NAME']}@{node['ROLLCALL_RAY_TEMP_DIR']}"))
        shutil.rmtree(node["ROLLCALL_RAY_TEMP_DIR"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
