"""Complete checkpoints of Search-R1, and those that a crash has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint.job import search_r1_checkpoints
from tests.support.search_r1_checkpoints import checkpoint

BOTH = ("actor", "critic")


def newest(directory: Path) -> Path | None:
    found = search_r1_checkpoints.newest(directory, BOTH)
    return found.of("actor") if found else None


def test_steps_of_an_attempt_count_after_those_that_it_began_with(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    checkpoint(tmp_path, 100)
    checkpoint(tmp_path / "after_100", 50)
    checkpoint(tmp_path / "after_100", 100, "actor")
    found = search_r1_checkpoints.newest(tmp_path, BOTH)
    assert found is not None
    assert (found.step, found.of("critic")) == (150, tmp_path / "after_100/critic/global_step_50")
    alone = search_r1_checkpoints.newest(tmp_path, ["actor"])
    assert alone is not None
    assert alone.step == 200
    assert search_r1_checkpoints.directory_after(tmp_path, 0) == tmp_path
    assert search_r1_checkpoints.directory_after(tmp_path, 150) == tmp_path / "after_150"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "tokenizer_config.json").unlink(),
        lambda path: (path / "tokenizer_config.json").write_text('{"a'),
        lambda path: (path / "config.json").unlink(),
        lambda path: (path / "model-00002-of-00002.safetensors").unlink(),
        lambda path: (path / "model-00001-of-00002.safetensors").write_bytes(b"\xff"),
        lambda path: path.rename(path.with_name("other")),
    ],
)
@pytest.mark.parametrize("role", BOTH)
def test_before_a_damaged_one_the_one_before_counts(
    tmp_path: Path, damage: Callable[[Path], object], role: str
) -> None:
    for step in (2, 4):
        checkpoint(tmp_path, step)
    damage(tmp_path / role / "global_step_4")
    assert newest(tmp_path) == tmp_path / "actor/global_step_2"
