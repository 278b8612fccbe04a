"""Two real nodes whose job is a script for every node, with real ranks over gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import rank_job
from tests.support.node_cluster import HEAD, Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

JOB = Path(rank_job.__file__)
WORKER = 1


def cluster(root: Path, steps: int, *flags: str) -> Cluster:
    out = root / "run" / "out"
    return Cluster(
        root,
        workers=1,
        job=(
            "torchrun",
            "--nnodes",
            "2",
            str(JOB),
            "--out",
            str(out),
            "--steps",
            str(steps),
            *flags,
        ),
        ROLLCALL_RECIPE="torchrun",
        ROLLCALL_STEP_PATTERN=r"^step (?P<step>\d+)/(?P<total_steps>\d+)",
        ROLLCALL_CHECKPOINTS="out/checkpoint-{step}/done",
        ROLLCALL_RESUME_ARGS="--resume {checkpoint}",
    )


def test_a_script_runs_on_both_nodes_to_its_end(tmp_path: Path) -> None:
    nodes = cluster(tmp_path, steps=8)
    try:
        nodes.start(HEAD, WORKER)
        assert nodes.exit_codes(within=150) == {HEAD: 0, WORKER: 0}
        assert nodes.left() == []
    finally:
        nodes.close()
    assert (result(nodes)["outcome"], result(nodes)["steps"]) == ("finished", 8)
    logs = nodes.run.logs
    assert "rank 0 of 2 begins" in (logs / "attempt-1-rank-0.log").read_text()
    assert "rank 1 of 2 begins" in (logs / "attempt-1-rank-1.log").read_text()
    whole = (logs / "attempt-1.log").read_text()
    (warning,) = nodes.events("layout-warning")
    assert warning["sentence"].startswith("torchrun --nnodes 2: no effect here")
    assert "rank 1 of 2 begins" in whole


@pytest.mark.faults
def test_a_killed_node_costs_what_was_not_saved_and_sigterm_saves(tmp_path: Path) -> None:
    nodes = cluster(tmp_path, 10_000, "--seconds", "0.2")
    try:
        nodes.start(HEAD, WORKER)
        nodes.until(lambda: nodes.step >= 12, "step 12", within=150)
        nodes.kill(WORKER)
        nodes.start(WORKER)
        nodes.until(lambda: len(nodes.events("attempt")) == 2, "a second attempt", within=120)
        begun = nodes.events("attempt")[1]["details"]["resume_from"]
        nodes.until(lambda: nodes.step >= begun + 12, "steps after the loss", within=150)
        nodes.terminate(HEAD)
        assert nodes.exit_codes(within=60) == {HEAD: 143, WORKER: 143}
        assert nodes.left() == []
    finally:
        nodes.close()
    assert begun >= 10
    assert [event["details"]["failure"] for event in nodes.events("failure")] == ["node_lost"]
    saved = max((nodes.run.root / "out").iterdir(), key=lambda path: int(path.name[11:]))
    row = json.loads((saved / "state.json").read_text())
    assert row["step"] > begun + 10, "it has saved when it was asked to stop"
    assert row["sum"] == row["step"] * (row["step"] + 1) / 2, "each step is done once"
