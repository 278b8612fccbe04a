"""A real head whose job is a script of transformers' Trainer, by accelerate's launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import trainer_job
from tests.support.node_cluster import HEAD, Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

FLAGS = (
    *("--save_steps", "5", "--use_cpu", "--report_to", "none"),
    *("--disable_tqdm", "true", "--per_device_train_batch_size", "2"),
)


def ended(root: Path, steps: int) -> Cluster:
    """Return a head whose job, of two ranks, has run to its end."""
    launch = ("ACCELERATE_USE_CPU=true", "accelerate", "launch", "--num_processes", "2")
    job = (*launch, trainer_job.__file__, *FLAGS, "--max_steps", str(steps))
    cluster = Cluster(root, workers=0, job=job, ROLLCALL_RECIPE="trl")
    try:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=250) == {HEAD: 0}, cluster.consoles()
        assert cluster.left() == []
    finally:
        cluster.close()
    assert (result(cluster)["outcome"], result(cluster)["steps"]) == ("finished", steps)
    assert (cluster.run.exported / "model.safetensors").is_file()
    return cluster


@pytest.mark.faults
def test_ranks_under_accelerates_launcher_train_to_the_end(tmp_path: Path) -> None:
    assert ended(tmp_path, steps=6).events("failure") == []


@pytest.mark.faults
def test_a_rank_that_is_killed_under_accelerates_launcher_costs_what_was_not_saved(
    tmp_path: Path,
) -> None:
    cluster = ended(tmp_path, steps=12)
    (failure,) = cluster.events("failure")
    assert "rank 0 on head was ended by SIGKILL" in failure["sentence"]
    begun = [event["details"]["resume_from"] for event in cluster.events("attempt")]
    assert begun == [0, 5], "from the newest checkpoint"
