"""The shards of a checkpoint."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from trainer.checkpoint import state, writer
from trainer.checkpoint.state import State
from trainer.checkpoint.writer import DriverState, RunState
from trainer.types import ALONE


def test_the_error_of_a_full_disk_names_the_shard(tmp_path: Path) -> None:
    (tmp_path / "policy.pt").symlink_to("/dev/full")
    shard = State(model={"weight": torch.zeros(100_000)}, adam={}, scheduler={})
    with pytest.raises(OSError, match="No space left") as error:
        state.save(tmp_path, "policy", shard, ALONE)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "policy.pt"))


def test_the_error_of_a_full_disk_names_the_pending_rollouts(tmp_path: Path) -> None:
    (tmp_path / writer.IN_FLIGHT).symlink_to("/dev/full")
    driver = DriverState(RunState(step=1, seed=0, prompts={}), b"rollouts")
    with pytest.raises(OSError, match="No space left") as error:
        writer.commit(tmp_path, driver, [])
    assert error.value.filename == str(tmp_path / writer.IN_FLIGHT)
