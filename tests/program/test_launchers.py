"""Scripts for accelerate's and DeepSpeed's launchers, on two nodes of this machine without GPUs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from tests.support.local_agents import LocalAgents, start
from tests.support.waiting import eventually
from trainer.cluster.stop import StopRequest

pytestmark = pytest.mark.timeout(300)

ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
numbers = accelerator.gather(torch.tensor([float(accelerator.process_index)]))
print("gathered", numbers.tolist(), "in", accelerator.mixed_precision, flush=True)
accelerator.end_training()  # without it, torch with gloo often aborts at the exit
"""
WITH_DEEPSPEED = """
import argparse
import deepspeed
import torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
options = parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
number = torch.tensor([1.0])
deepspeed.comm.all_reduce(number)
print("sum", number.item(), "local rank", options.local_rank, flush=True)
deepspeed.comm.destroy_process_group()
"""


def said(root: Path, script: str, *words: str) -> list[str]:
    """What the logs of the nodes end with."""
    (root / "train.py").write_text(script)
    assert start(LocalAgents(2), [*words, "train.py"], root).follow() is ExitCode.FINISHED
    return [path.read_text().splitlines()[-1] for path in sorted((root / "logs").iterdir())]


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["--cpu", pytest.param("", marks=pytest.mark.faults)])
def test_accelerates_ranks_gather(tmp_path: Path, mode: str) -> None:
    """With --cpu it starts no ranks; else its launcher does, as on GPUs."""
    launcher = str(Path(sys.executable).with_name("accelerate"))
    words = ["ACCELERATE_USE_CPU=true", launcher, "launch", *mode.split()]
    lines = said(tmp_path, ACCELERATED, *words, "--mixed_precision", "bf16")
    ranks = ["", ""] if mode else ["[default0]:", "[default0]:"]
    assert lines == [f"{rank}gathered [0.0, 1.0] in bf16" for rank in ranks]


FAILS = """
import os, signal, sys, time
if os.environ.get("RANK", "0") == "1" or "--alone" in sys.argv:
    print("loading", flush=True)
    if "SIGKILL" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "64" in sys.argv:
        print("train.py: error: no such column: prompt", file=sys.stderr)
        sys.exit(64)
    raise ValueError("no such column: prompt")
time.sleep(600)
"""
TWO_RANKS = "ACCELERATE_USE_CPU=true accelerate launch --num_processes 2 train.py"
ONE_RANK = "accelerate launch --cpu --quiet train.py --alone"


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("words", "ends", "code", "said"),
    [
        (TWO_RANKS, "64", 64, "1 on node-0 ended with exit code 64: train.py: error: no such colu"),
        (
            TWO_RANKS,
            "SIGKILL",
            70,
            "1 on node-0 was ended by SIGKILL, often for lack of memory; its la",
        ),
        (ONE_RANK, "1", 70, "0 on node-0 ended with exit code 1: ValueError: no such column: pro"),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (
                (TWO_RANKS, "1", 70, "1 on node-0 ended with exit code 1: ValueError: no such col"),
                (ONE_RANK, "64", 64, "0 on node-0 ended with exit code 64: train.py: error: no su"),
                (
                    ONE_RANK,
                    "SIGKILL",
                    70,
                    "0 on node-0 was ended by SIGKILL, often for lack of memory; its la",
                ),
            )
        ),
    ],
)
def test_a_rank_that_fails_under_accelerates_launcher_is_named_with_its_own_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: str, ends: str, code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    ranks = start(LocalAgents(1), [*words.split(), ends], tmp_path)
    assert ranks.follow() == code
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith(f"rank {said}")


SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_a_rank_for_which_accelerates_launcher_only_waits_saves_when_it_is_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    stop, log = StopRequest(), tmp_path / "logs/attempt-1-rank-0.log"
    words = ["accelerate", "launch", "--cpu", "--quiet", "train.py"]
    ranks = start(LocalAgents(1), words, tmp_path, stop)

    def ask() -> None:
        eventually(lambda: log.exists() and "ready" in log.read_text(), 100)
        stop.requested = True

    threading.Thread(target=ask, daemon=True).start()
    assert ranks.follow() is ExitCode.STOPPED
    assert "saved" in log.read_text()


@pytest.mark.faults
def test_deepspeeds_ranks_reduce(tmp_path: Path) -> None:
    """Slow: each rank needs some 10 s of a core to import DeepSpeed."""
    lines = said(tmp_path, WITH_DEEPSPEED, "deepspeed", "--num_gpus", "1")
    assert lines == ["sum 2.0 local rank 0"] * 2
