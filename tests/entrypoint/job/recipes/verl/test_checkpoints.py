"""Complete checkpoints of verl, and those that a crash has left."""

from __future__ import annotations

from pathlib import Path

from entrypoint.job.recipes.verl import checkpoints
from tests.support.verl_checkpoints import checkpoint


def newest(directory: Path) -> int | None:
    found = checkpoints.newest(directory)
    return found.step if found else None


def test_the_newest_is_the_highest_step_that_verl_has_called_complete(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for step in (9, 10):
        checkpoint(tmp_path, step)
    assert newest(tmp_path) == 10
    checkpoint(tmp_path, 20)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    assert newest(tmp_path) == 10, "step 20 is still written"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("")
    assert newest(tmp_path) is None


def test_one_of_megatron_is_complete_with_the_list_of_its_contents(tmp_path: Path) -> None:
    """With asynchronous writes, the actor's may be over, and the critic's not."""
    for step in (2, 4):
        path = checkpoint(tmp_path, step, 0)
        for role in ("actor", "critic"):
            (path / role / "optimizer/dist_ckpt").mkdir(parents=True)
            (path / role / "ckpt_contents.json").write_text("{}")
    assert newest(tmp_path) == 4
    (path / "critic/ckpt_contents.json").unlink()
    assert newest(tmp_path) == 2


def test_the_ranks_of_fsdp_are_known_and_those_of_megatron_are_not(tmp_path: Path) -> None:
    assert checkpoints.world_size(checkpoint(tmp_path, 2, 16)) == 16
    path = checkpoint(tmp_path, 4, 0)
    (path / "actor" / "dist_ckpt").mkdir(parents=True)
    (path / "actor" / "dist_ckpt" / "common.pt").touch()
    assert checkpoints.world_size(path) is None
    assert newest(tmp_path) == 4
