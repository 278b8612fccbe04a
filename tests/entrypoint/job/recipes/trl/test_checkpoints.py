"""Complete checkpoints of transformers' Trainer, and those that a crash has left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from entrypoint.job.recipes.trl import checkpoints as hf_checkpoints
from tests.support.hf_checkpoints import checkpoint, torch_file


def newest(output: Path) -> int | None:
    found = hf_checkpoints.newest(output)
    return found.step if found else None


def test_the_newest_complete_one_counts(tmp_path: Path) -> None:
    assert newest(tmp_path / "nowhere") is None
    for step in (2, 10, 9):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert newest(tmp_path) == 10


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("world", [4, 300, 70_000])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_checkpoint_needs_the_file_of_each_rank_of_zero(
    tmp_path: Path, stage: int, world: int, protocol: int
) -> None:
    checkpoint(tmp_path, 2)
    path = checkpoint(tmp_path, 4)
    tag = path / "global_step4"
    tag.mkdir()
    (path / "latest").write_text("global_step4")
    state = {"module": {"weight": torch.ones(2)}, "dp_world_size": world, "mp_world_size": 1}
    model, shard = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    for rank in range(world if world == 4 else 1):
        assert rank == 0 or newest(tmp_path) == 2, f"rank {rank} has not saved"
        of_rank = f"zero_pp_rank_{rank}_{model}" if stage == 3 else model
        torch.save(state, tag / of_rank, pickle_protocol=protocol)
        torch_file(tag / f"bf16_{shard.format(rank)}")
    if world != 4:
        assert newest(tmp_path) == 2
        return
    assert newest(tmp_path) == 4
    (tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert newest(tmp_path) == 2, "a hole"


def test_the_ranks_of_zero_are_counted(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 4)
    assert hf_checkpoints.zero_ranks(path) == 0
    for rank in range(3):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch_file(path / "global_step4" / name)
    (path / "latest").write_text("global_step4")
    assert newest(tmp_path) == 4
    assert hf_checkpoints.zero_ranks(path) == 3
