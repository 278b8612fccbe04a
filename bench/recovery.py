"""Time from a fault to the next new training step, against a loop around Ray.

Both sides run the same trainer with the same flags and checkpoints in three containers, with the
repository mounted into them. The other side is what the guides leave to the user: `ray start` on
each node with the health checks that ours have, and a program that submits the job by REST and, at
its end, again at once; a container that was killed is started again at once on both sides, but in
the rows `spare` and `head_gone`, where it stays away and another node waits for work. The loop's
trainer repairs nothing and keeps no snapshots with peers: a lost process ends the job, as in other
trainers. The worker that is killed or frozen is the one that the policy is on. A new step is one
that no attempt had finished before; the one that was in flight at the fault, and may yet end, does
not count. The value is the worst of the ratios, each divided by its target.

Our nodes have the default settings, so that they hold standby ranks. Before each fault both sides
have the time in which standby ranks start.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from bench.result import report
from contract.files.child_variables import NODE_MARK
from contract.journal import read_events
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.node import ray_node
from entrypoint.processes.process import find_marked, kill
from env.http.arguments import positive
from tests.support.node_cluster import command_line
from tests.support.podman import IMAGE, OF_THE_IMAGE, Container, missing, podman
from tests.support.ray_workers import actor_of

REPOSITORY = Path(__file__).parents[1]
WORKERS = ("worker-1", "worker-2")
SPARE = "worker-3"
HEAD = 0
CPUS = 6
"""Of each worker: what is lost with one has room on the other."""
HEAD_CPUS = 0
"""So that none of the job but its driver is there."""
TIMEOUT_SECONDS = 240.0
SETTLED_STEPS, SETTLED_SECONDS = 8, 60.0
"""Finished, and passed, after a fault and before the next one."""

RATIOS = {"driver": 1 / 2, "worker": 1 / 3, "frozen": 1 / 2, "spare": 1 / 3}
"""Fault → the most that ours may take, as a share of the loop's time."""
SECONDS = {"engine": 5.0, "head": 15.0, "spare": 6.0, "head_gone": 45.0}
"""Fault → the most seconds that ours may take."""
WITH_SPARE = ("spare", "head_gone")
"""Faults of a cluster with a worker more; what is lost stays away. The last one ends it."""
NODE_TIMEOUT = 15.0
"""The default of ROLLCALL_NODE_TIMEOUT."""

AGAIN = """
import json, time, urllib.request
def ask(path, row=None):
    data = row and json.dumps(row).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request("http://localhost:8265" + path, data, kind)
    return json.load(urllib.request.urlopen(request, timeout=5))
job = None
while True:
    try:
        job = job or ask("/api/jobs/", {"entrypoint": COMMAND})["submission_id"]
        status = ask("/api/jobs/" + job)["status"]
    except OSError:
        status = "PENDING"
    if status == "SUCCEEDED":
        break
    if status in ("FAILED", "STOPPED"):
        job = None
    else:
        time.sleep(0.1)
"""

JOB = (
    *("--pretrain", "/data/model", "--prompt_data", "/data/train.jsonl"),
    *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "arithmetic"),
    *("--rollout_batch_size", "16", "--train_batch_size", "16", "--generate_max_len", "4"),
    *("--micro_train_batch_size", "16", "--num_episodes", "100000", "--max_steps", "100000"),
    *("--vllm_num_engines", "2", "--save_steps", "1", "--max_ckpt_num", "2"),
)


@dataclass(frozen=True, slots=True)
class Node:
    """What the container of a node is started with."""

    name: str
    env: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    """Instead of the image's."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Containers at work on one run."""

    name: str
    run: RunFiles
    nodes: list[Container] = field(default_factory=list)

    def mark(self, number: int) -> str:
        """By which the processes of a node are found."""
        return f"{self.name}-{number}"

    def processes(self, number: int) -> list[psutil.Process]:
        """All that runs in a container."""
        node = self.mark(number)
        of_ray = f"{node}@/tmp/rollcall-{OF_THE_IMAGE[0]}"
        return [p for mark in (node, of_ray) for p in find_marked(mark)]

    def step(self) -> int:
        progress = Progress.read(self.run.progress)
        return progress.step if progress else 0

    def restart(self, number: int) -> None:
        self.nodes[number].kill()
        self.nodes[number].start_again()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[*FAULTS])
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--loop-only", action="store_true")
    options = parser.parse_args()
    if reason := missing():
        raise SystemExit(f"it needs containers: {reason}")
    signal.signal(signal.SIGTERM, ended)
    found: dict[str, dict[str, list[float]]] = {"ours": {}, "loop": {}}
    with tempfile.TemporaryDirectory(prefix="rollcall-recovery-") as directory:
        data = prepared(Path(directory))
        for number in range(options.rounds):
            for side, start in SIDES.items():
                if getattr(options, f"{OTHER[side]}_only"):
                    continue
                for spares, faults in enumerate(grouped(options.faults, side)):
                    root = Path(directory) / f"{side}-{number}-{spares}"
                    if faults:
                        measure(partial(start, spares), root, data, faults, found[side])
    return conclude(found, options.rounds)


def grouped(faults: Sequence[str], side: str) -> tuple[list[str], list[str]]:
    """Return the faults of a cluster without a spare, and with one, that the side can repair."""
    mine = [one for one in FAULTS if one in faults and (side == "ours" or one in RATIOS)]
    without = [one for one in mine if one not in WITH_SPARE]
    return without, [one for one in mine if one in WITH_SPARE]


def ended(number: int, frame: FrameType | None) -> NoReturn:
    """Through the cleaning up, once."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


def prepared(root: Path) -> Path:
    data = root / "data"
    prepare = [sys.executable, "-m", "env.prepare", "arithmetic", "--out", str(data)]
    subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
    return data


@contextmanager
def with_rollcall(spares: int, root: Path, data: Path) -> Iterator[Cluster]:
    """The image as users start it."""
    env = {"EXPECTED_WORKERS": "2", "ROLLCALL_HEAD_ADDRESS": "head"}
    if spares:
        env |= {"ROLLCALL_SPARE_WORKERS": str(spares), "ROLLCALL_HEAD_FAILOVER": "auto"}
    of_head = {"RAY_WORKER": "0", "ROLLCALL_NUM_CPUS": str(HEAD_CPUS)}
    of_worker = {"RAY_WORKER": "1", "ROLLCALL_NUM_CPUS": str(CPUS)}
    head = Node("head", env | of_head, words=("--", *JOB))
    workers = (Node(name, env | of_worker) for name in workers_with(spares))
    with started(root, data, (head, *workers)) as cluster:
        yield cluster


@contextmanager
def loop(spares: int, root: Path, data: Path) -> Iterator[Cluster]:
    """Ray as the guides start it, tuned, and a program on the head that submits the job."""
    job = [
        *("python", "-m", "trainer", *JOB, "--load_checkpoint"),
        *("--max_repairs", "0", "--peer_snapshot", "off", "--run_dir", "/checkpoints"),
    ]

    def node(name: str, role: str, cpus: int) -> Node:
        ray = f"ray start {role} --num-cpus={cpus} --disable-usage-stats --block"
        until = f"until {ray}; do sleep 0.2; done"
        health = ray_node.health_checks(NODE_TIMEOUT)
        return Node(name, health, words=("bash", "-c", until), entrypoint=("tini", "--"))

    head = node("head", "--head --dashboard-host=0.0.0.0", HEAD_CPUS)
    workers = (node(name, "--address=head:6379", CPUS) for name in workers_with(spares))
    with started(root, data, (head, *workers)) as cluster:
        again = AGAIN.replace("COMMAND", repr(shlex.join(job)))
        podman("exec", "--detach", cluster.nodes[HEAD].id, "python", "-c", again)
        yield cluster


def workers_with(spares: int) -> list[str]:
    return [*WORKERS, *[SPARE][:spares]]


SIDES = {"ours": with_rollcall, "loop": loop}
OTHER = {"ours": "loop", "loop": "ours"}


@contextmanager
def started(root: Path, data: Path, nodes: Sequence[Node]) -> Iterator[Cluster]:
    """A network with a container for each node; removed at the end, consoles kept in `root`."""
    cluster = Cluster(f"bench-{uuid.uuid4().hex[:8]}", RunFiles(root / "run"))
    cluster.run.root.mkdir(parents=True)
    os.chown(cluster.run.root, *OF_THE_IMAGE)
    podman("network", "create", cluster.name)
    try:
        for number, node in enumerate(nodes):
            # Process titles would overwrite the mark.
            mark = cluster.mark(number)
            env = {NODE_MARK: mark, "ROLLCALL_NODE_NAME": mark, "SPT_NOENV": "1"}
            options = [
                *(f"--hostname={node.name}", f"--network-alias={node.name}", "--shm-size=512m"),
                *(f"--network={cluster.name}", "--pids-limit=-1", "--workdir=/repository"),
                *(f"--volume={REPOSITORY}:/repository:ro", "--env=PYTHONPATH=/repository"),
                "--env=OMP_NUM_THREADS=1",
                *(f"--volume={cluster.run.root}:/checkpoints", f"--volume={data}:/data:ro"),
                *(f"--env={key}={value}" for key, value in {**env, **node.env}.items()),
            ]
            if node.entrypoint:
                options.append(f"--entrypoint={json.dumps(node.entrypoint)}")
            name = f"{cluster.name}-{node.name}"
            cluster.nodes.append(Container.start(name, *options, IMAGE, *node.words))
        yield cluster
    finally:
        for container in cluster.nodes:
            (root / f"{container.name}.log").write_text(container.said)
            container.remove()
        podman("network", "rm", "--force", cluster.name, check=False)


def measure(
    start: Callable[[Path, Path], AbstractContextManager[Cluster]],
    root: Path,
    data: Path,
    faults: list[str],
    into: dict[str, list[float]],
) -> None:
    """One fault after the other on one run; seconds of each are added to `into`."""
    with start(root, data) as cluster:
        for fault in faults:
            settle(cluster)
            seen = len(list(read_events(cluster.run.journal)))
            began, at = time.monotonic(), datetime.now(UTC)
            undo = FAULTS[fault](cluster)
            before = cluster.step()
            until_step(cluster, before + 2)
            seconds = time.monotonic() - began
            told = told_since(cluster, seen, at)
            print(f"{root.name}: {fault} {seconds:.1f} s, from step {before}; {told}", flush=True)
            into.setdefault(fault, []).append(seconds)
            if undo is not None:
                undo()


def settle(cluster: Cluster) -> None:
    """Until some more steps are finished and all nodes are at work again."""
    until_step(cluster, cluster.step() + SETTLED_STEPS)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    numbers = range(len(cluster.nodes))
    while not all(any("raylet" in name(p) for p in cluster.processes(n)) for n in numbers):
        if time.monotonic() > deadline:
            raise SystemExit("a node did not come back")
        time.sleep(0.5)
    time.sleep(SETTLED_SECONDS)


def until_step(cluster: Cluster, step: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while cluster.step() < step:
        if time.monotonic() > deadline:
            tails = [node.said[-3000:] for node in cluster.nodes]
            raise SystemExit("\n".join([*tails, f"no step {step} within {TIMEOUT_SECONDS:g} s"]))
        time.sleep(0.02)


def told_since(cluster: Cluster, seen: int, began: datetime) -> str:
    """What the journal tells of the way to the new step, each with its seconds."""
    events = list(read_events(cluster.run.journal))[seen:]
    told = []
    for event in events:
        seconds = (datetime.fromisoformat(event["at"]) - began).total_seconds()
        told.append(f"{event['kind']} {seconds:.1f}")
    return ", ".join(told)


def kill_driver(cluster: Cluster) -> None:
    lines = {p: [word for word in command_line(p) if word != "-P"] for p in cluster.processes(HEAD)}
    kill([p for p, line in lines.items() if line[1:3] == ["-m", "trainer"]])


def kill_engine(cluster: Cluster) -> None:
    _, process = carrying(cluster, "engine-1")
    kill([process])


def kill_worker(cluster: Cluster) -> None:
    number, _ = carrying(cluster, "policy-0")
    cluster.restart(number)


def freeze_worker(cluster: Cluster) -> Callable[[], None]:
    number, _ = carrying(cluster, "policy-0")
    for process in cluster.processes(number):
        process.suspend()
    return lambda: cluster.restart(number)


def carrying(cluster: Cluster, actor: str) -> tuple[int, psutil.Process]:
    """The one process of this actor, and the number of its node."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:  # it says its name a little after it has started
        for number in range(len(cluster.nodes)):
            for process in cluster.processes(number):
                if actor_of(process) == actor:
                    return number, process
    raise SystemExit(f"no {actor} anywhere")


def lose_worker(cluster: Cluster) -> Callable[[], None]:
    number, _ = carrying(cluster, "policy-0")
    cluster.nodes[number].kill()
    return lambda: cluster.nodes[number].start_again()


FAULTS: dict[str, Callable[[Cluster], Callable[[], None] | None]] = {
    "driver": kill_driver,
    "worker": kill_worker,
    "frozen": freeze_worker,
    "engine": kill_engine,
    "head": lambda cluster: cluster.restart(HEAD),
    "spare": lose_worker,
    "head_gone": lambda cluster: cluster.nodes[HEAD].kill(),
}


def name(process: psutil.Process) -> str:
    """Its program, or the title that it has given itself."""
    return Path((command_line(process) or [""])[0]).name.split(" ")[0]


def conclude(found: dict[str, dict[str, list[float]]], rounds: int) -> int:
    medians = {
        side: {fault: statistics.median(seconds) for fault, seconds in faults.items()}
        for side, faults in found.items()
    }
    mine, theirs = medians["ours"], medians["loop"]
    ratios = {fault: mine[fault] / theirs[fault] for fault in RATIOS if fault in theirs}
    scores = [ratio / RATIOS[fault] for fault, ratio in ratios.items()]
    scores += [mine[fault] / most for fault, most in SECONDS.items() if fault in mine]
    ok = report(
        "recovery",
        max(scores),
        unit="worst of time / target",
        target=1.0,
        better="lower",
        detail={
            "ours_seconds": rounded(mine),
            "loop_seconds": rounded(theirs),
            "ratios": rounded(ratios),
            "target_ratios": rounded(RATIOS),
            "target_seconds": rounded(SECONDS),
            "rounds": rounds,
            "cores": os.cpu_count(),
        },
    )
    return 0 if ok else 1


def rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {key: round(number, 2) for key, number in numbers.items()}


if __name__ == "__main__":
    sys.exit(main())
