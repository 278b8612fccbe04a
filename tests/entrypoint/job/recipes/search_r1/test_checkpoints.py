"""Complete checkpoints of Search-R1, and those that a crash has left."""

from __future__ import annotations

from pathlib import Path

from entrypoint.job.recipes.search_r1 import checkpoints
from tests.support.search_r1_checkpoints import checkpoint

BOTH = ("actor", "critic")


def newest(directory: Path) -> Path | None:
    found = checkpoints.newest(directory, BOTH)
    return found.of("actor") if found else None


def test_steps_of_an_attempt_count_after_those_that_it_began_with(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    checkpoint(tmp_path, 100)
    checkpoint(tmp_path / "after_100", 50)
    checkpoint(tmp_path / "after_100", 100, "actor")
    found = checkpoints.newest(tmp_path, BOTH)
    assert found is not None
    assert (found.step, found.of("critic")) == (150, tmp_path / "after_100/critic/global_step_50")
    alone = checkpoints.newest(tmp_path, ["actor"])
    assert alone is not None
    assert alone.step == 200
    assert checkpoints.directory_after(tmp_path, 0) == tmp_path
    assert checkpoints.directory_after(tmp_path, 150) == tmp_path / "after_150"
