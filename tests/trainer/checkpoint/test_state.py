"""The shards of a checkpoint."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from trainer.checkpoint import state, writer
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import part_of, whole_of
from trainer.checkpoint.writer import DriverState, RunState
from trainer.types import ALONE, Rank, UnknownShardError


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


WEIGHT = torch.arange(15.0).view(5, 3)
CUTS = [(0, 4), (4, 5), (5, 15)]
"""Where the piece of each rank begins and ends."""


def save_pieces(directory: Path, ranks: range) -> None:
    for rank in ranks:
        first, last = CUTS[rank]
        piece = WEIGHT.flatten()[first:last]
        own = {f"own.{rank}": torch.ones(2) * rank}
        share = State(
            model={"weight": piece, **own},
            adam={"weight": {"step": torch.tensor(3.0), "exp_avg": -piece}},
            scheduler={},
            pieces={"weight": (first, (5, 3))},
        )
        state.save(directory, "policy", share, Rank(rank, len(CUTS)))


def test_the_pieces_of_several_ranks_are_one_tensor(tmp_path: Path) -> None:
    save_pieces(tmp_path, range(3))
    found = state.load(tmp_path, "policy")
    found.check_fits({"weight": WEIGHT} | {f"own.{n}": torch.empty(2) for n in range(3)})
    for tensor, expected in (
        (found.model["weight"], WEIGHT),
        (found.adam["weight"]["exp_avg"], -WEIGHT),
    ):
        assert torch.equal(whole_of(tensor), expected)
        for start in range(16):
            for size in range(16 - start):
                part = part_of(tensor, start, size)
                assert torch.equal(part, expected.flatten()[start : start + size])
    assert float(found.adam["weight"]["step"]) == 3


def test_values_of_a_tensor_in_pieces_are_never_taken_for_zeros(tmp_path: Path) -> None:
    save_pieces(tmp_path, range(3))
    with pytest.raises(NotImplementedError):
        torch.zeros(5, 3).copy_(state.load(tmp_path, "policy").model["weight"])


@pytest.mark.parametrize("missing", range(3))
def test_a_missing_piece_is_named(tmp_path: Path, missing: int) -> None:
    save_pieces(tmp_path, range(3))
    (tmp_path / f"policy-{missing}-of-3.pt").unlink()
    with pytest.raises(UnknownShardError, match="the shards do not have all of weight: "):
        state.load(tmp_path, "policy")


def test_versions_without_pieces_read_a_state_without_pieces(tmp_path: Path) -> None:
    state.save(tmp_path, "policy", State(model={"weight": WEIGHT}, adam={}, scheduler={}), ALONE)
    content = torch.load(tmp_path / "policy.pt", weights_only=True)
    assert content.keys() == {"model", "adam", "scheduler", "average"}
