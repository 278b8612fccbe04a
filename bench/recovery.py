"""Time from a fault to the next new training step, against Ray's defaults and a shell loop.

Both sides run the same trainer with the same flags and checkpoints on three nodes of this machine
(the loopback addresses 127.0.0.2 to 127.0.0.4). The other side is what the guides leave to the
user: `ray start` on each node, and `until ray job submit …; do :; done`, which submits again at
once; a node that died is started again at once on both sides. Its trainer keeps no snapshots with
peers, so that a lost rank ends the job, as in other trainers. A new step is one that no attempt had
finished before; the one that was in flight at the fault, and may yet end, does not count. The value
is the worst of the ratios, each divided by its target.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

import psutil

from bench.boot import listens, ray_start, under_tini
from bench.result import report
from entrypoint.demo import Layout, free_ports, inherited
from entrypoint.process import NODE_MARK, Process, kill, marked
from entrypoint.ray_node import ray_program
from trainer.contract import Progress, read_events

NODES = 3
HEAD, VICTIM = 0, 2
CPUS = 4
"""Of each node: what is lost with one has room on the others."""
TIMEOUT_SECONDS = 240.0
SETTLED_STEPS = 8
"""Finished after a fault, before the next one."""
MARK = f"bench-recovery-{os.getpid()}"

RATIOS = {"driver": 0.6, "worker": 1 / 3, "frozen": 1 / 4}
"""Fault → the most that ours may take, as a share of the loop's time."""
SECONDS = {"engine": 5.0, "head": 30.0}
"""Fault → the most seconds that ours may take; the loop is not asked."""


class Side(Protocol):
    layout: Layout

    def start(self, number: int) -> None:
        """A node, as its platform starts it."""

    def processes(self, number: int) -> list[psutil.Process]:
        """All that runs on a node."""


@dataclass
class Ours:
    layout: Layout
    data: Path
    stack: ExitStack
    nodes: dict[int, Process] = field(default_factory=dict)

    def start(self, number: int) -> None:
        env = self.layout.node(number) | {"ROLLCALL_NUM_CPUS": str(CPUS)}
        self.nodes[number] = Process(
            f"node-{number}",
            [
                *(*under_tini(), sys.executable, "-m", "entrypoint", "up"),
                *(["--", *job(self.data)] if number == HEAD else []),
            ],
            env=inherited() | env | {NODE_MARK: f"{MARK}-{number}", "OMP_NUM_THREADS": "1"},
            log_to=self.layout.root / f"node-{number}.log",
        )

    def processes(self, number: int) -> list[psutil.Process]:
        env = self.layout.node(number)
        of_ray = f"{env['ROLLCALL_NODE_NAME']}@{env['ROLLCALL_RAY_TEMP_DIR']}"
        return [*marked(f"{MARK}-{number}"), *marked(of_ray)]


@dataclass
class Loop:
    layout: Layout
    data: Path
    stack: ExitStack

    def start(self, number: int) -> None:
        head = self.layout.node(HEAD)["ROLLCALL_NODE_ADDRESS"]
        role = "--head" if number == HEAD else f"--address={head}:{self.layout.ports}"
        self._run(f"ray-{number}", number, ray_start(self.layout, number, role, CPUS))
        if number == HEAD:
            while not listens(head, self.layout.ports + 1):
                time.sleep(0.05)

    def submit(self) -> None:
        """The shell loop, on the head's machine but no process of the node."""
        head = self.layout.node(HEAD)["ROLLCALL_NODE_ADDRESS"]
        submit = [
            *(ray_program(), "job", "submit"),
            *("--address", f"http://{head}:{self.layout.ports + 1}", "--"),
            *(sys.executable, "-m", "trainer", *job(self.data), "--load_checkpoint"),
            *("--peer_snapshot", "off"),
            *("--run_dir", str(self.layout.run.root)),
        ]
        self._run("loop", NODES, ["bash", "-c", f"until {shlex.join(submit)}; do :; done"])

    def processes(self, number: int) -> list[psutil.Process]:
        return marked(f"{MARK}-{number}")

    def _run(self, name: str, number: int, command: list[str]) -> Process:
        # Else process titles overwrite the mark, and agents live on to slow the next run.
        env = {NODE_MARK: f"{MARK}-{number}", "SPT_NOENV": "1", "OMP_NUM_THREADS": "1"}
        log_to = self.layout.root / f"{name}.log"
        return Process(name, command, env=inherited() | env, log_to=log_to)


def job(data: Path) -> list[str]:
    return [
        *("--pretrain", str(data / "model"), "--prompt_data", str(data / "train.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "arithmetic"),
        *("--rollout_batch_size", "16", "--train_batch_size", "16", "--generate_max_len", "4"),
        *("--micro_train_batch_size", "16", "--num_episodes", "100000", "--max_steps", "100000"),
        *("--vllm_num_engines", "2", "--save_steps", "1", "--max_ckpt_num", "2"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", nargs="+", default=[*RATIOS, *SECONDS])
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--loop-only", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, ended)
    found: dict[str, dict[str, list[float]]] = {"ours": {}, "loop": {}}
    with tempfile.TemporaryDirectory(prefix="rollcall-recovery-") as directory:
        data = prepared(Path(directory))
        for number in range(options.rounds):
            root = Path(directory)
            if not options.loop_only:
                measure(ours, root / f"ours-{number}", data, options.faults, found["ours"])
            faults = [fault for fault in options.faults if fault in RATIOS]
            if faults and not options.ours_only:
                measure(loop, root / f"loop-{number}", data, faults, found["loop"])
    return conclude(found, options.rounds)


def ended(number: int, frame: FrameType | None) -> NoReturn:
    """Through the cleaning up, once."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


def prepared(root: Path) -> Path:
    data = root / "data"
    prepare = [sys.executable, "-m", "env.prepare", "arithmetic", "--out", str(data)]
    subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
    return data


def ours(layout: Layout, data: Path, stack: ExitStack) -> Side:
    side = Ours(layout, data, stack)
    for number in range(NODES):
        side.start(number)
    return side


def loop(layout: Layout, data: Path, stack: ExitStack) -> Side:
    side = Loop(layout, data, stack)
    for number in range(NODES):
        side.start(number)
    side.submit()
    return side


def measure(
    start: Callable[[Layout, Path, ExitStack], Side],
    root: Path,
    data: Path,
    faults: list[str],
    into: dict[str, list[float]],
) -> None:
    """One fault after the other on one run; seconds of each are added to `into`."""
    layout = Layout(root, free_ports())
    layout.run.root.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(clean_up, layout)
        side = start(layout, data, stack)
        for fault in faults:
            settle(side)
            seen = len(list(read_events(layout.run.journal)))
            began = time.monotonic()
            at = datetime.now(UTC)
            FAULTS[fault](side)
            before = step_of(layout)
            until_step(layout, before + 2)
            seconds = time.monotonic() - began
            told = told_since(layout, seen, at)
            print(f"{root.name}: {fault} {seconds:.1f} s, from step {before}; {told}", flush=True)
            into.setdefault(fault, []).append(seconds)
            if fault == "frozen":
                kill(side.processes(VICTIM))
                side.start(VICTIM)


def settle(side: Side) -> None:
    """Until some more steps are finished and all nodes are at work again."""
    until_step(side.layout, step_of(side.layout) + SETTLED_STEPS)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not all(any("raylet" in name(p) for p in side.processes(n)) for n in range(NODES)):
        if time.monotonic() > deadline:
            raise SystemExit("a node did not come back")
        time.sleep(0.5)
    time.sleep(5.0)


def step_of(layout: Layout) -> int:
    progress = Progress.read(layout.run.progress)
    return progress.step if progress else 0


def until_step(layout: Layout, step: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while step_of(layout) < step:
        if time.monotonic() > deadline:
            tails = [path.read_text()[-3000:] for path in sorted(layout.root.glob("*.log"))]
            raise SystemExit("\n".join([*tails, f"no step {step} within {TIMEOUT_SECONDS:g} s"]))
        time.sleep(0.02)


def told_since(layout: Layout, seen: int, began: datetime) -> str:
    """What the journal tells of the way to the new step, each with its seconds."""
    events = list(read_events(layout.run.journal))[seen:]
    told = []
    for event in events:
        seconds = (datetime.fromisoformat(event["at"]) - began).total_seconds()
        told.append(f"{event['kind']} {seconds:.1f}")
    return ", ".join(told)


def kill_driver(side: Side) -> None:
    kill([p for p in side.processes(HEAD) if [*words(p)][1:3] == ["-m", "trainer"]])


def kill_engine(side: Side) -> None:
    found = [p for n in range(NODES) for p in side.processes(n) if name(p) == "ray::engine-1"]
    kill(found)


def kill_worker(side: Side) -> None:
    kill(side.processes(VICTIM))
    side.start(VICTIM)


def freeze_worker(side: Side) -> None:
    for process in side.processes(VICTIM):
        process.suspend()


def kill_head(side: Side) -> None:
    kill(side.processes(HEAD))
    side.start(HEAD)


FAULTS: dict[str, Callable[[Side], None]] = {
    "driver": kill_driver,
    "worker": kill_worker,
    "frozen": freeze_worker,
    "engine": kill_engine,
    "head": kill_head,
}


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def name(process: psutil.Process) -> str:
    """Its program, or the title that it has given itself."""
    return Path((words(process) or [""])[0]).name.split(" ")[0]


def clean_up(layout: Layout) -> None:
    for number in range(NODES + 1):
        node = layout.node(number)
        of_ray = f"{node['ROLLCALL_NODE_NAME']}@{node['ROLLCALL_RAY_TEMP_DIR']}"
        kill([*marked(f"{MARK}-{number}"), *marked(of_ray)])


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
            "targets": rounded(RATIOS | SECONDS),
            "rounds": rounds,
            "cores": os.cpu_count(),
        },
    )
    return 0 if ok else 1


def rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {key: round(number, 2) for key, number in numbers.items()}


if __name__ == "__main__":
    sys.exit(main())
