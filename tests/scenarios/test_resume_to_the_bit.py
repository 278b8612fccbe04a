"""Killed anywhere and resumed, a run ends with the very weights of one that never was.

Each life is a forked child of this process, killed by SIGKILL at its n-th operation on the run
directory: in the middle of a checkpoint, between a manifest and its event, while an old one is
being deleted. The kill points are every open, rename, mkdir, unlink and rmtree there.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.journal import read_events
from tests.support.saved_states import leaves_of
from tests.support.tiny_run import Tiny, metric_rows, train
from trainer.config.config import Config

STEPS = 5
OPERATIONS = 215
"""On the run directory, in an uninterrupted run; a test below keeps this number true."""
WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


def one_life(config: Config, kill_at: int | None = None) -> int:
    """Train in a child, killed at its operation number `kill_at`. Returns its exit code."""
    child = os.fork()
    if child == 0:
        try:
            if kill_at is not None:
                sys.addaudithook(on_operation(config.files.root, kill_at, die))
            train(config)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_operation(directory: Path, number: int, act: Callable[[], None]) -> Callable[..., None]:
    """An audit hook that acts at one operation on `directory`, before it is done."""
    count = itertools.count(1)  # of all threads: the one that writes a checkpoint, too

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_one = event in WATCHED and str(directory) in str(arguments[0])
        if is_one and next(count) == number:
            act()

    return hook


@dataclass(frozen=True)
class Uninterrupted:
    final: dict[str, bytes]
    rewards: list[float]


def configure(tiny: Tiny, run: Path) -> Config:
    return tiny.config(
        run,
        max_steps=STEPS,
        save_steps=2,
        max_ckpt_num=1,
        eval_dataset=tiny.held_out,
        eval_steps=2,
        enable_ema=True,
        kl_target=1e-3,
        kl_horizon=32,
        normalize_reward=True,
        load_checkpoint=True,
    )


def final_state(config: Config) -> dict[str, bytes]:
    return leaves_of(config, STEPS)


def rewards_of(config: Config) -> list[float]:
    return [row["train/reward"] for row in metric_rows(config) if "train/reward" in row]


def assert_no_step_is_lost_or_made_twice(config: Config) -> None:
    """Each attempt makes the steps after the confirmed one that it resumed from, one by one."""
    confirmed, next_step = {0}, 1
    for event in read_events(config.files.journal):
        step = event["details"].get("step")
        if event["kind"] == "resume":
            assert step in confirmed
            next_step = step + 1
        elif event["kind"] == "step":
            assert step == next_step
            next_step += 1
        elif event["kind"] == "checkpoint":
            confirmed.add(step)
    assert next_step == STEPS + 1
    assert [row["step"] for row in metric_rows(config) if "train/reward" in row] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in metric_rows(config) if "eval/accuracy" in row] == [0, 2, 4, 5]


@pytest.fixture(scope="module")
def uninterrupted(forgetful: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    torch.set_num_threads(1)  # a child of a process with a pool of threads would hang
    config = configure(forgetful, tmp_path_factory.mktemp("uninterrupted") / "run")
    assert one_life(config) == 0
    return Uninterrupted(final_state(config), rewards_of(config))


def test_every_operation_of_a_run_is_a_kill_point(tiny: Tiny, run_dir: Path) -> None:
    config = configure(tiny, run_dir)
    assert one_life(config, kill_at=OPERATIONS) == -signal.SIGKILL
    assert one_life(configure(tiny, run_dir.with_name("other")), kill_at=OPERATIONS + 1) == 0


KILLS = st.lists(st.integers(1, OPERATIONS), min_size=1, max_size=2)


@settings(max_examples=4)
@given(kills=KILLS)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    forgetful: Tiny,
    uninterrupted: Uninterrupted,
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[int],
) -> None:
    assert_equal_to_the_bit(forgetful, uninterrupted, tmp_path_factory.mktemp("killed"), kills)


@pytest.mark.faults
@settings(max_examples=30)
@given(kills=KILLS)
def test_so_does_one_that_was_killed_at_many_other_points(
    forgetful: Tiny,
    uninterrupted: Uninterrupted,
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[int],
) -> None:
    assert_equal_to_the_bit(forgetful, uninterrupted, tmp_path_factory.mktemp("killed"), kills)


def assert_equal_to_the_bit(
    forgetful: Tiny, uninterrupted: Uninterrupted, root: Path, kills: list[int]
) -> None:
    """A run that was killed at these operations, one life each, ends as `uninterrupted` did."""
    config = configure(forgetful, root / "run")
    for kill_at in kills:
        assert one_life(config, kill_at) in (-signal.SIGKILL, 0)
    assert one_life(config) == 0
    assert final_state(config) == uninterrupted.final
    assert rewards_of(config) == uninterrupted.rewards
    assert_no_step_is_lost_or_made_twice(config)
    shutil.rmtree(root)
