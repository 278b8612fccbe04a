"""`python -m trainer` on a Ray of its own, and the workers below it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract.launch.programs import Program
from entrypoint.processes.programs import program
from tests.support.fork_server.forking_python import forking_python
from tests.support.ray_nodes import short_directory, workers_of
from tests.support.repository import ROOT
from tests.support.tiny_run import Tiny, to_argv

STEPS = 30


def flags_of(tiny: Tiny, run_dir: Path, **more: Any) -> dict[str, Any]:
    return {
        **tiny.needed(run_dir),
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "train_batch_size": 4,
        "micro_train_batch_size": 2,
        "micro_rollout_batch_size": 4,
        "generate_max_len": 3,
        "max_steps": STEPS,
        "save_steps": 5,
        "load_checkpoint": True,
        "actor_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
        "vllm_num_engines": 2,
        **more,
    }


def start(
    flags: dict[str, Any], ray_directory: Path, address: str | None = None
) -> subprocess.Popen[str]:
    """On a Ray of its own, or on the one that is at `address`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "WANDB_"))}
    environment |= {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(ray_directory)}
    if address:
        environment["RAY_ADDRESS"] = address
    return subprocess.Popen(
        [forking_python(), *program(Program.TRAINER, *to_argv(flags))[1:]],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def worker_of(actor: str, driver: subprocess.Popen[str]) -> psutil.Process:
    """The process of Ray's that holds the actor of a driver; waits for it."""
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = workers_of(actor)
        return len(found) == 1

    wait_until(there, driver)
    return found[0]


Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def ray_directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


@pytest.fixture
def begin(ray_directory: Path) -> Iterator[Begin]:
    """Starts a run with these flags, on a Ray of its own or on that at an address."""
    drivers: list[subprocess.Popen[str]] = []

    def begin(flags: dict[str, Any], address: str | None = None) -> subprocess.Popen[str]:
        drivers.append(start(flags, ray_directory, address))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.kill()
        driver.communicate()
