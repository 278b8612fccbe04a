"""Killed anywhere and resumed, a run ends with the very weights of one that never was.

Each life is a forked child of this process, killed by SIGKILL at its n-th operation on the run
directory: in the middle of a checkpoint, between a manifest and its event, while old ones are
being deleted. The kill points are every open, rename, mkdir, unlink and rmtree there.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.harness import Tiny, events, metric_rows, train
from trainer.config import Config
from trainer.contract import checkpoint_path, fault_of

STEPS = 5
KILLED = -signal.SIGKILL
WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


def one_life(config: Config, kill_at: int | None = None) -> int:
    """Train in a child. Returns its exit code; killed at the given operation, if it gets there."""
    child = os.fork()
    if child == 0:
        try:
            if kill_at is not None:
                sys.addaudithook(killer(str(config.run_dir), kill_at))
            train(config)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killer(directory: str, kill_at: int):  # type: ignore[no-untyped-def]
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in WATCHED and directory in str(arguments[0]):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


@dataclass(frozen=True)
class Uninterrupted:
    config: Config
    final: dict[str, bytes]
    rewards: list[float]
    operations: int


def configure(tiny: Tiny, run: Path) -> Config:
    return tiny.config(
        run,
        max_steps=STEPS,
        save_steps=2,
        max_ckpt_num=1,
        eval_dataset=tiny.held_out,
        eval_steps=2,
        load_checkpoint=True,
    )


def final_state(config: Config) -> dict[str, bytes]:
    """Every number of the last checkpoint: weights, moments, counters."""
    directory = checkpoint_path(config.checkpoints, STEPS)
    assert fault_of(directory) is None
    return {
        f"{role}/{name}": value.numpy().tobytes()
        for role in ("policy", "critic")
        for name, value in tensors(torch.load(directory / f"{role}.pt", weights_only=True))
    }


def tensors(content: object, at: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        return [(at, content)]
    if isinstance(content, dict):
        parts = content.items()
    elif isinstance(content, list | tuple):
        parts = dict(enumerate(content)).items()
    else:
        return [(f"{at}={content}", torch.zeros(0))]
    return [pair for name, part in parts for pair in tensors(part, f"{at}/{name}")]


def rewards_of(config: Config) -> list[float]:
    return [row["train/reward"] for row in metric_rows(config) if "train/reward" in row]


@pytest.fixture(scope="module")
def uninterrupted(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    torch.set_num_threads(1)  # a child of a process with a pool of threads would hang
    config = configure(tiny, tmp_path_factory.mktemp("uninterrupted") / "run")
    counted = config.run_dir
    assert counted is not None
    assert one_life(config) == 0
    return Uninterrupted(config, final_state(config), rewards_of(config), 170)


def assert_journal_is_gapless(config: Config) -> None:
    """Each attempt makes the steps after the one it resumed from, one by one."""
    confirmed, expected = {0}, 1
    for event in (e for kind in [None] for e in all_events(config, kind)):
        step = event["details"].get("step")
        if event["kind"] == "resume":
            assert step in confirmed
            expected = step + 1
        elif event["kind"] == "step":
            assert step == expected
            expected += 1
        elif event["kind"] == "checkpoint":
            confirmed.add(step)
    assert expected == STEPS + 1


def all_events(config: Config, _: None):  # type: ignore[no-untyped-def]
    from trainer.contract import read_events

    return read_events(config.files.journal)


@settings(max_examples=12)
@given(kills=st.lists(st.integers(1, 110), min_size=1, max_size=2))
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    tiny: Tiny,
    uninterrupted: Uninterrupted,
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[int],
) -> None:
    root = tmp_path_factory.mktemp("killed")
    config = configure(tiny, root / "run")
    for kill_at in kills:
        assert one_life(config, kill_at) in (KILLED, 0)
    assert one_life(config) == 0
    assert final_state(config) == uninterrupted.final
    assert rewards_of(config) == uninterrupted.rewards
    assert_journal_is_gapless(config)
    shutil.rmtree(root)
