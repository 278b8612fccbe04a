"""Exit code 0 without a model, on a real node: of a training that was ended, and of a start."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from contract.files import stored_json
from tests.support.node_cluster import HEAD, Cluster, result
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

STEPS = 5
REWARD = """
import os
from pathlib import Path

CALLS = 0


def reward_func(queries, prompts, labels):
    global CALLS
    CALLS += 1
    if CALLS == {fatal} and os.environ["ROLLCALL_ATTEMPT"] == "1":
        os._exit(0)
    return [len(query) / 10 for query in queries]
"""


def trained(root: Path, fatal: int) -> Cluster:
    """Run a job to its end whose reward function ends the first attempt at a call."""
    root.mkdir()
    reward = root / "reward.py"
    reward.write_text(REWARD.replace("{fatal}", str(fatal)))
    job = [*tiny_job(root, STEPS, str(reward)), "--seed", "7", "--save_steps", "1"]
    with closing(Cluster(root / "run", workers=0, job=job, ROLLCALL_RECIPE="builtin")) as cluster:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=300) == {HEAD: 0}, cluster.consoles()
        return cluster


def test_the_run_goes_on_and_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    ended, whole = trained(tmp_path / "ended", fatal=5), trained(tmp_path / "whole", fatal=0)
    (failure,) = ended.events("failure")
    assert failure["details"]["failure"] == "unknown"
    assert failure["sentence"].startswith(
        f"unknown: the job ended with exit code 0 after step 3 of {STEPS}, and it has not written "
    )
    (decision,) = ended.events("decision")
    assert decision["sentence"].startswith("the job died: resuming from step ")
    assert result(ended)["attempts"] == 2
    assert result(whole)["attempts"] == 1
    weights = [one.run.exported / "model.safetensors" for one in (ended, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    told = stored_json.json_object(ended.run.progress)
    assert told is not None
    assert told["step"] == STEPS, json.dumps(told)


def test_a_finished_run_whose_model_was_deleted_writes_it_again(tmp_path: Path) -> None:
    job = [*tiny_job(tmp_path, STEPS), "--seed", "7", "--save_steps", "1"]
    run = tmp_path / "run"
    with closing(Cluster(run, workers=0, job=job, ROLLCALL_RECIPE="builtin")) as cluster:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=300) == {HEAD: 0}, cluster.consoles()
        weights = cluster.run.exported / "model.safetensors"
        written = weights.read_bytes()
        shutil.rmtree(cluster.run.exported)
        cluster.start(HEAD)
        assert cluster.exit_codes(within=300) == {HEAD: 0}, cluster.consoles()
        assert "is gone, or not whole: it is written again" in cluster.said(HEAD)
        assert weights.read_bytes() == written
