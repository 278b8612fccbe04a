"""The main job on one machine: a head, two workers and a reward server, as real Ray nodes.

Three entrypoint processes run exactly what the image runs. The demo sets only what a container
would give them: host name, address and ports.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from contract.durations import counted, duration
from contract.exit_codes import ExitCode
from contract.files.child_variables import STARTED_BY
from contract.files.os_errors import to_a_reader
from contract.launch.programs import Program
from contract.manifest import newest_checkpoint
from contract.options import ParseError
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.commands import demo_child, demo_plot
from entrypoint.commands.arguments import NAME_OF_RUN, Parser, run_name
from entrypoint.commands.cli import DEMO_TAKES
from entrypoint.commands.demo_nodes import (
    STOP_SECONDS,
    DemoNode,
    Keeper,
    end_all,
    end_with_make,
    log_format,
    of_node,
)
from entrypoint.config import parsers
from entrypoint.config.read import read_settings
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.process import Process, identity, kill
from entrypoint.processes.programs import as_typed, program
from entrypoint.run import errors, run_facts

if TYPE_CHECKING:
    from rich import progress

log = logging.getLogger("rollcall.demo")

BUSY_SECONDS = 10.0
"""Seconds after which a log has another line about what is being made."""
CRASH_DRIVER_AT = 0.3
CRASH_WORKER_AT = 0.6
"""Shares of the run's steps after which `--crash` kills the training driver and a worker."""
KILLED = 128 + signal.SIGKILL
WORKERS = 2
PORTS_PER_NODE = 200
PORTS = 1000
"""Ports of one demo; enough for four nodes."""
WARM_UP_SUMS = "256"
STEPS = 120
"""Steps after which the policy answers about nine of ten held-out sums."""
WHAT_COMES = (
    f"the demo takes {DEMO_TAKES} on two CPU cores. It makes sums and a tiny model, and warms the "
    f"model up. Then a head and {WORKERS} workers train it with PPO, and the head prints its page"
)
STOPPED = "the demo is stopped. To go on: %s"
STOPPING = f"stopping: the job saves, and the nodes end, for at most {duration(STOP_SECONDS)}"
HELP_DIR = "where everything goes (default: runs/demo-TIME); a demo that was stopped there goes on"


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories and ports of one demo."""

    root: Path
    ports: int
    """First of the ports that the demo uses."""
    name: str = ""
    """The run's name; that of the directory if empty."""

    @property
    def run(self) -> RunFiles:
        return RunFiles(self.root / "run")

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def reward_port(self) -> int:
        return self.ports + 3

    def node(self, number: int) -> dict[str, str]:
        """Return the environment of node `number`; 0 is the head. Each has a loopback address."""
        first = self.ports + 10 + number * PORTS_PER_NODE
        name = "head" if number == 0 else f"worker-{number}"
        address = f"127.0.0.{2 + number}"
        return {
            "ROLLCALL_RUN_DIR": str(self.run.root),
            "ROLLCALL_NODE_NAME": name,
            "ROLLCALL_NAME": self.name or _name_of(self.root),
            "ROLLCALL_NODE_ADDRESS": address,
            "ROLLCALL_BIND": address,
            "ROLLCALL_HEAD_ADDRESS": "127.0.0.2",
            "ROLLCALL_RAY_PORT": str(self.ports),
            "ROLLCALL_DASHBOARD_PORT": str(self.ports + 1),
            "ROLLCALL_CONTROL_PORT": str(self.ports + 2),
            "ROLLCALL_WORKER_PORTS": f"{first}-{first + PORTS_PER_NODE - 1}",
            "ROLLCALL_RAY_TEMP_DIR": f"/tmp/rollcall-{os.getpid()}-{number}",
            "ROLLCALL_NUM_CPUS": "2",
            "ROLLCALL_GRACE_SECONDS": "5",
            "EXPECTED_WORKERS": str(WORKERS),
            "RAY_WORKER": "0" if number == 0 else "1",
        }

    @property
    def asking(self) -> str:
        """The variables with which another shell's commands ask the head."""
        names = ("ROLLCALL_RUN_DIR", "ROLLCALL_HEAD_ADDRESS", "ROLLCALL_CONTROL_PORT")
        head = self.node(0)
        return " ".join(f"{name}={shlex.quote(head[name])}" for name in names)

    def mark(self, number: int) -> str:
        """Return the mark of the processes of node `number`."""
        env = self.node(number)
        return f"{env['ROLLCALL_NODE_NAME']}@{env['ROLLCALL_RAY_TEMP_DIR']}"

    def started(self, number: int, pid: int) -> DemoNode:
        """Return node `number`, whose process is `pid`."""
        ray_home = self.node(number)["ROLLCALL_RAY_TEMP_DIR"]
        return DemoNode(pid, identity(pid), self.mark(number), ray_home)


def main(arguments: Sequence[str]) -> int:
    options = parser().parse(arguments)
    console.set_up(read_settings({**log_format(), "ROLLCALL_NODE_NAME": "demo"}))
    end_with_make()
    root = (options.dir or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")).resolve()
    if why := _other_seed(Layout(root, 0).run, options.seed):
        log.error("--seed %d: %s, or another --dir", options.seed, why)
        return ExitCode.USAGE
    try:
        ports = PortBlock(PORTS)
    except OSError as error:
        log.error("%s", error)
        return ExitCode.RETRY
    try:
        with ports as first:
            layout = Layout(root, first, options.name or "")
            try:
                layout.run.root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                log.error("%s: give --dir a directory that can be written", errors.describe(error))
                return ExitCode.RUN_DIR
            if not layout.run.journal.exists():
                log.info("%s", WHAT_COMES)
                _prepare(layout, options)
            return _run(layout, options)
    except KeyboardInterrupt as stopped:
        return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)
    except subprocess.CalledProcessError as error:
        log.error("%s ended with %d", " ".join(map(str, error.cmd[:4])), error.returncode)
        return ExitCode.JOB_FAILED


def parser() -> Parser:
    made = Parser("demo", __doc__)
    made.add_argument("--crash", action="store_true", help="kill the driver and a worker")
    made.add_argument("--seed", type=int, default=0, help="of data, model, training (default: 0)")
    made.add_argument(
        "--steps", type=_count, default=STEPS, help=f"training steps (default: {STEPS})"
    )
    made.add_argument("--name", type=run_name, help=f"{NAME_OF_RUN} (default: that of --dir)")
    made.add_argument("--dir", type=Path, help=HELP_DIR)
    return made


def _other_seed(run: RunFiles, seed: int) -> str:
    """Return why the run refuses the seed, and which one to give; "" if it takes it."""
    try:
        begun = run_facts.flags(run).get("seed", "")
        if begun in ("", str(seed)) or newest_checkpoint(run.checkpoints, checksums=False) is None:
            return ""
    except OSError:  # the head says why
        return ""
    return f"{run.root} has steps with --seed {begun}, and goes on with no other. Give that one"


def _name_of(root: Path) -> str:
    """Return the name of a directory, if a run may have it; else ""."""
    try:
        return parsers.run_name(root.name)
    except ParseError:
        return ""


def _count(text: str) -> int:
    """Return the number in `text`. Raises ArgumentTypeError unless it is a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _prepare(layout: Layout, options: argparse.Namespace) -> None:
    """Make data and a tiny model, and train it supervised until it knows half of the sums."""
    seed = options.seed
    try:
        log.info("making sums below 100 and a tiny transformer in %s", layout.data)
        run_module("data and model", Program.PREPARE, "arithmetic", *data_flags(layout, seed))
        log.info("supervised warm-up on %s of the sums, solved", WARM_UP_SUMS)
        run_module("warm-up", Program.SUPERVISED, "sft", *warm_up_flags(layout, seed))
    except KeyboardInterrupt:
        log.warning(STOPPED, again(layout, options))
        raise


def run_module(what: str, module: Program, *words: str) -> None:
    """Run a program of this product, and say for how long. Raises as `demo_child.run`."""
    with busy(what):
        demo_child.run(program(module, *words))


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show the seconds in a row of a terminal, else a line now and then, until the block ends."""
    if sys.stderr.isatty() and not console.writes_json():
        with _clock() as shown:
            shown.add_task(what, total=None)
            yield
        return
    began, over = time.monotonic(), threading.Event()

    def say() -> None:
        while not over.wait(BUSY_SECONDS):
            log.info("%s: %s so far", what, duration(time.monotonic() - began))

    thread = threading.Thread(target=say, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _clock() -> progress.Progress:
    """Return a row of a terminal that is redrawn."""
    from rich import progress  # 0.1 s, which no other command needs
    from rich.console import Console

    text = progress.TextColumn("{task.description}")
    columns = progress.SpinnerColumn(), text, progress.TimeElapsedColumn()
    return progress.Progress(*columns, console=Console(stderr=True), transient=True)


def data_flags(layout: Layout, seed: int) -> list[str]:
    return [
        *("--out", str(layout.data), "--seed", str(seed)),
        *("--max-operand", "49", "--train-size", "2500", "--warmup-size", WARM_UP_SUMS),
        *("--layers", "1", "--hidden-size", "128"),
    ]


def warm_up_flags(layout: Layout, seed: int) -> list[str]:
    return [
        *("--pretrain", str(layout.data / "model")),
        *("--dataset", str(layout.data / "warmup.jsonl")),
        *("--save_path", str(layout.data / "warm")),
        *("--max_steps", "400", "--max_epochs", "200", "--max_len", "16"),
        *("--train_batch_size", "64", "--learning_rate", "1e-3"),
        *("--seed", str(seed)),
    ]


def job_flags(layout: Layout, seed: int, steps: int = STEPS) -> list[str]:
    """Return the PPO job's flags, as a user gives them after the image's name."""
    return [
        *("--pretrain", str(layout.data / "warm")),
        *("--prompt_data", str(layout.data / "train.jsonl")),
        *("--eval_dataset", str(layout.data / "eval.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer"),
        *("--advantage_estimator", "gae", "--init_kl_coef", "0.001"),
        *("--rollout_batch_size", "512", "--n_samples_per_prompt", "1"),
        *("--train_batch_size", "128", "--max_epochs", "2"),
        *("--micro_train_batch_size", "128", "--micro_rollout_batch_size", "256"),
        *("--actor_learning_rate", "1e-3", "--critic_learning_rate", "2e-3"),
        *("--lr_warmup_ratio", "0.05", "--freezing_actor_steps", "5"),
        *("--generate_max_len", "5", "--vllm_num_engines", "2"),
        *("--max_steps", str(steps), "--eval_steps", "10", "--save_steps", "5"),
        *("--seed", str(seed)),
    ]


def _run(layout: Layout, options: argparse.Namespace) -> int:
    job = job_flags(layout, options.seed, options.steps)
    log.info("to ask from another terminal: export %s; %s status", layout.asking, as_typed())
    try:
        with Keeper(again(layout, options)) as keeper:
            code = _run_nodes(layout, options, job, keeper)
    except KeyboardInterrupt:
        log.warning(STOPPED, again(layout, options))  # last: what the nodes say comes before
        raise
    if code == ExitCode.FINISHED:
        tell_end(layout)
    elif code == KILLED:
        log.error("the head was killed, so the demo ends. To go on: %s", again(layout, options))
    return code


def _run_nodes(layout: Layout, options: argparse.Namespace, job: list[str], keeper: Keeper) -> int:
    """Start all nodes, wait for the head's end, and end all; return the head's exit code."""
    nodes: list[Process] = []

    def start(number: int) -> Process:
        node = _start(layout, number, job, "" if number else again(layout, options))
        keeper.learn(layout.started(number, node.pid))
        return node

    try:
        nodes.extend(start(number) for number in range(1 + WORKERS))
        if options.crash:
            crash = threading.Thread(target=_crash, args=(layout, nodes, start), daemon=True)
            crash.start()
        code = nodes[0].wait() or 0
        for node in nodes[1:]:
            node.wait(STOP_SECONDS)
        return code
    except KeyboardInterrupt:
        log.warning("%s", STOPPING)
        raise
    finally:
        end_all(layout.started(number, node.pid) for number, node in enumerate(nodes))


def again(layout: Layout, options: argparse.Namespace) -> str:
    """Return the command that goes on with the demo: the same run, as long as it was to be.

    It has `--crash` if the first crash is still to come: after it, the second would come at once.
    """
    words = ["--dir", str(layout.root), "--steps", str(options.steps), "--seed", str(options.seed)]
    name = ["--name", options.name] if options.name else []
    crash = ["--crash"] if options.crash and not _is_at_share(layout, CRASH_DRIVER_AT) else []
    return f"{as_typed()} demo {shlex.join([*words, *name, *crash])}"


def _start(layout: Layout, number: int, job: list[str], whole: str = "") -> Process:
    """Return the started node; the head, number 0, has the job's flags and the reward server.

    `whole`: the command that goes on with the demo, which the head's page and report tell.
    """
    env = inherited() | layout.node(number)
    arguments = []
    log_to = layout.root / f"console-{number}.log"  # RUN/logs has the same lines of the worker
    if number == 0:
        env[STARTED_BY] = whole
        reward = f"127.0.0.1:{layout.reward_port}"
        server = program(Program.REWARD_SERVER, "--task", "arithmetic-partial")
        env["ROLLCALL_REWARD_URL"] = f"http://{reward}/get_reward"
        env["ROLLCALL_REWARD_COMMAND"] = " ".join(
            [*server, "--host", "127.0.0.1", "--port", str(layout.reward_port)]
        )
        arguments = job
    return Process(
        env["ROLLCALL_NODE_NAME"],
        program(Program.ROLLCALL, "up", "--", *arguments),
        env=env,
        log_to=None if number == 0 else log_to,
    )


def inherited() -> dict[str, str]:
    """Return this environment without the variables of another cluster."""
    ours = ("ROLLCALL_", "RAY_", "HEAD_POD_ID", "EXPECTED_WORKERS", "RUNPOD_", "SLURM_", "DSTACK_")
    others = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return others | log_format()


def _crash(layout: Layout, nodes: list[Process], start: Callable[[int], Process]) -> None:
    """Kill the training driver; later kill a worker with all its processes and restart it."""
    _wait_for_share(layout, CRASH_DRIVER_AT)
    drivers = [p for p in of_node(layout.mark(0)) if "trainer" in _words(p)]
    log.warning("CRASH: SIGKILL to the training driver (%d processes)", len(drivers))
    kill(drivers)
    _wait_for_share(layout, CRASH_WORKER_AT)
    log.warning("CRASH: SIGKILL to worker-2 with everything on it")
    kill([psutil.Process(nodes[2].pid), *of_node(layout.mark(2))])
    nodes[2].wait()
    time.sleep(2)
    log.warning("worker-2 is started again, as a container platform would")
    nodes[2] = start(2)


def _wait_for_share(layout: Layout, share: float) -> None:
    while not _is_at_share(layout, share):
        time.sleep(0.2)


def _is_at_share(layout: Layout, share: float) -> bool:
    progress = Progress.read(layout.run.progress)
    return progress is not None and progress.step >= share * progress.total_steps


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def tell_end(layout: Layout) -> None:
    """Print what the run has made. That the reader has left, as `| head` does, is no failure."""
    to_a_reader(lambda: _report(layout))


def _report(layout: Layout) -> int:
    """Print what the run has made, or log it; return 0."""
    rows = [json.loads(line) for line in layout.run.metrics.read_text().splitlines()]
    picture = layout.run.root / "learning_curve.png"
    demo_plot.as_png(rows, picture)
    result = json.loads(layout.run.result.read_text())
    paths = {
        "model": layout.run.exported,
        "checkpoints": layout.run.checkpoints,
        "journal": layout.run.journal,
        "logs": layout.run.logs,
        "curve": picture,
    }
    before, after = (
        "not known" if value is None else f"{100 * value:.0f} %"
        for value in (result["eval_before"], result["eval_after"])
    )
    accuracy = (
        f"held-out accuracy {before} before, {after} after {counted(result['steps'], 'step')} "
        f"in {counted(result['attempts'], 'attempt')}"
    )
    if console.writes_json():
        details = result | {what: str(path) for what, path in paths.items()}
        log.info("%s", accuracy, extra={"event": "result", "details": details})
        return ExitCode.FINISHED
    print(demo_plot.in_terminal(rows))
    print(accuracy)
    for what, path in paths.items():
        print(f"{what:<12}{path}")
    print(f"{'report':<12}{as_typed()} report {shlex.quote(str(layout.run.root))}")
    print(f"{'page':<12}{as_typed()} open {shlex.quote(str(layout.run.root))}")
    print("all numbers, for programs:")
    print(layout.run.result)  # alone: programs take the last line as a path
    return ExitCode.FINISHED
