"""Where faults are played: a head and two workers, real nodes, at work on a real training."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from contract.journal import timestamp
from contract.manifest import MANIFEST
from contract.run_dir import RunFiles
from entrypoint.commands.demo import WORKERS
from tests.container.faults import checker
from tests.container.faults.checker import Damage
from tests.container.faults.results import RECORDED
from tests.container.faults.reward import RewardServer
from tests.support.node_cluster import HEAD, Cluster, command_line, signalled

BOOT_SECONDS = 200
MAX_RESTARTS = 5
HANG_SECONDS = 45
SECRET = "wandb-key-that-nobody-may-see-in-a-log-0"

MODEL = ("--hidden-size", "32", "--layers", "2", "--heads", "2")
SIZES = ("--train-size", "512", "--eval-size", "16")
LEARNING = (
    *("--input_key", "prompt", "--label_key", "answer", "--generate_max_len", "4"),
    *("--rollout_batch_size", "8", "--train_batch_size", "8", "--micro_train_batch_size", "8"),
    *("--advantage_estimator", "gae", "--init_kl_coef", "0", "--lr_scheduler", "constant"),
    *("--actor_learning_rate", "1e-3", "--critic_learning_rate", "1e-3", "--seed", "7"),
)
"""PPO without a reference: policy, critic and an engine."""
SAVING = ("--save_steps", "5", "--max_ckpt_num", "5", "--dist_timeout", "45")


def make_data(root: Path) -> Path:
    """Sums and a tiny model that a step takes a few hundredths of a second with."""
    make = [sys.executable, "-m", "env.prepare", "arithmetic", "--out", str(root)]
    subprocess.run([*make, *MODEL, *SIZES], check=True, capture_output=True)
    return root


def data_flags(data: Path) -> tuple[str, ...]:
    return "--pretrain", str(data / "model"), "--prompt_data", str(data / "train.jsonl")


class Stage(Cluster):
    """The cluster with its roles by name, and what was broken in its run directory."""

    def __init__(
        self, root: Path, data: Path, reward: RewardServer, *, workers: int = WORKERS
    ) -> None:
        self.data, self.reward = data, reward
        self.damages: list[Damage] = []
        self.differs: dict[int, dict[str, str]] = {}
        """Variables that a node has in another way than all."""
        job = [*data_flags(data), *LEARNING, *SAVING, "--num_episodes", "100000"]
        super().__init__(root, workers, job, ROLLCALL_RECIPE="builtin")
        self.plain = RECORDED
        self._env |= {
            "ROLLCALL_REWARD_URL": reward.url,
            "ROLLCALL_HANG_TIMEOUT": str(HANG_SECONDS),
            "ROLLCALL_MAX_RESTARTS": str(MAX_RESTARTS),
            "ROLLCALL_GRACE_SECONDS": "15",  # a step and a checkpoint, however busy the machine
            "WANDB_API_KEY": SECRET,
            "WANDB_MODE": "disabled",
            "OMP_NUM_THREADS": "1",
        }

    @property
    def head(self) -> int:
        """The number of the node that leads."""
        return HEAD

    def environment(self, number: int) -> dict[str, str]:
        notice = self.preempt_file(number)
        env = super().environment(number) | {"ROLLCALL_PREEMPT_FILE": str(notice)}
        return env | self.differs.get(number, {})

    def change_flag(self, name: str, value: str) -> None:
        """From the head's next start on."""
        place = self._job.index(name) + 1
        self._job = [*self._job[:place], value, *self._job[place + 1 :]]

    def preempt_file(self, number: int) -> Path:
        return self.layout.root / f"preempted-{number}"

    def ray_sessions(self, number: int) -> list[Path]:
        """Directories of the node's Ray: of its clusters so far."""
        directory = self.ray_dir(number)
        return [path for path in directory.glob("session_*") if not path.is_symlink()]

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.preempt_file(number).unlink(missing_ok=True)
        super().start(*numbers)

    def trains(self) -> bool:
        try:
            self.goes_on(within=15)
        except AssertionError:
            return False
        return True

    def is_whole(self) -> bool:
        """Whether every worker is on the head's roll, with its Ray, and stays there.

        The roll may still know a worker that was just killed, and Ray's daemon starts after it is
        told of the new one.
        """
        for pause in (1.0, 1.0, 0.0):
            asked = self.ask("status", "--json")
            if asked.returncode or json.loads(asked.stdout)["present"] < len(self.nodes) - 1:
                return False
            if not all(self.named(number, "raylet") for number in self.nodes):
                return False
            time.sleep(pause)
        return True

    def of(self, role: str) -> list[psutil.Process]:
        """The processes of a role: driver, policy, critic, engine, gcs; and of the head, or with -1
        of the first worker: raylet, entrypoint, node (all of it)."""
        role, _, number = role.partition("-")
        node = int(number or HEAD)
        match role:
            case "driver":
                return [p for p in self.named(self.head, "trainer") if "-m" in command_line(p)]
            case "raylet":
                return self.named(node, "raylet")
            case "gcs":
                return self.named(self.head, "gcs_server")
            case "entrypoint":
                return [psutil.Process(self.nodes[node].pid)]
            case "node":
                return [psutil.Process(self.nodes[node].pid), *self.processes(node)]
        return [p for n in self.nodes for p in self.processes(n) if titled(p, f"ray::{role}-")]

    def send(self, role: str, number: signal.Signals) -> None:
        """Raises AssertionError where nobody has the role for as long as a start may take."""
        processes: list[psutil.Process] = []

        def found() -> bool:  # a title is not there while it changes
            processes[:] = self.of(role)
            return bool(processes)

        self.until(found, role, within=60)
        signalled(processes, number)

    def checkpoints(self) -> list[Path]:
        """Whole ones, newest first."""
        found = self.run.checkpoints.glob("global_step_*")
        whole = [path for path in found if (path / MANIFEST).exists()]
        return sorted(whole, key=lambda path: int(path.name.rpartition("_")[2]), reverse=True)

    def damaged(self, checkpoint: Path) -> None:
        step = int(checkpoint.name.rpartition("_")[2])
        self.damages.append(Damage(step, timestamp()))

    def faults(self) -> list[str]:
        """What the checker has to say of the run."""
        token = self.run.token.read_text().strip() if self.run.token.exists() else ""
        found = checker.faults(
            self.run, max_restarts=MAX_RESTARTS, damages=self.damages, secrets=[token, SECRET]
        )
        consoles = {f"console of node {n}": self.said(n) for n in self.nodes}
        return [*found, *checker.told(consoles, [token, SECRET])]

    def orphans(self) -> list[str]:
        """What runs of nodes whose entrypoint has ended."""
        over = [number for number, node in self.nodes.items() if not node.running]
        return [" ".join(command_line(p)) for n in over for p in self.processes(n)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def titled(process: psutil.Process, title: str) -> bool:
    return "".join(command_line(process)[:1]).startswith(title)


def leaves(content: object, at: str = "") -> Iterator[tuple[str, bytes]]:
    """Every number of a checkpoint's file, as bytes."""
    import torch

    if isinstance(content, torch.Tensor):
        yield at, content.numpy().tobytes()
    elif isinstance(content, dict | list | tuple):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        yield from itertools.chain.from_iterable(leaves(part, f"{at}/{n}") for n, part in pairs)
    else:
        yield at, repr(content).encode()


def numbers(run: RunFiles, step: int) -> dict[str, bytes]:
    """Weights, moments and counters of policy and critic after `step`."""
    import torch

    directory = run.checkpoints / f"global_step_{step}"
    return {
        f"{role}{name}": content
        for role in ("policy", "critic")
        for name, content in leaves(torch.load(directory / f"{role}.pt", weights_only=True))
    }
