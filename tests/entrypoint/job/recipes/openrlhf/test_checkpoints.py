"""Complete checkpoints of OpenRLHF, and those that a crash has left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrypoint.job.recipes.openrlhf import checkpoints
from tests.support import openrlhf_process
from tests.support.openrlhf_checkpoints import checkpoint


def newest(directory: Path) -> str | None:
    found = checkpoints.newest([directory / "_actor", directory / "_critic"])
    return found.tag if found else None


def test_the_newest_is_the_highest_step_that_both_roles_have(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for step in (9, 10):
        checkpoint(tmp_path, step)
    assert newest(tmp_path) == "global_step10"
    checkpoint(tmp_path, 20, "_actor")
    assert newest(tmp_path) == "global_step10", "the critic's is not written"
    checkpoint(tmp_path, 20, "_critic")
    (tmp_path / "_critic/latest").write_text("global_step10")
    assert newest(tmp_path) == "global_step10", "the critic's is still written"
    (tmp_path / "_actor/latest").unlink()
    assert newest(tmp_path) is None


def test_a_checkpoint_of_the_best_evaluation_counts_after_a_regular_one(tmp_path: Path) -> None:
    for name in ("global_step2", "best_global_step4"):
        for role in ("_actor", "_critic"):
            written = checkpoint(tmp_path, 4, role)
            written.rename(written.with_name(name))
            (tmp_path / role / "latest").write_text(name)
    assert newest(tmp_path) == "best_global_step4"
    checkpoint(tmp_path, 4)
    assert newest(tmp_path) == "global_step4"


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What OpenRLHF's own code has done."""
    script = Path(openrlhf_process.__file__)
    directory = tmp_path_factory.mktemp("checkpoints")
    done = subprocess.run(
        [sys.executable, script, directory], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_openrlhf_itself_resumes_actor_and_critic_from_the_step_that_was_chosen(row: Any) -> None:
    assert row["crash"]["before"] == [6, 4], "what it would have done"
    assert (row["crash"]["step"], row["crash"]["after"]) == (4, [4, 4])
    assert row["crash"]["ranks"] == 1


@pytest.mark.slow
def test_rank_0_of_openrlhfs_own_trainers_tells_each_step(row: Any) -> None:
    told = ["rollcall: step 7\n", ""]
    assert row["steps"] == {f"openrlhf.cli.train_{name}": told for name in ("sft", "rm", "dpo")}
