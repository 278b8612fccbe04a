"""Ranks of a program that knows nothing of Rollcall: the one that the others wait for is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster import hanging_job
from tests.support.entry_points import NEEDS_ENTRY_POINT
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), NEEDS_ENTRY_POINT]

JOB = Path(hanging_job.__file__)
WORKER = 1
RANKS, STILL = 4, 3
"""Two ranks on each node. The last one stands still."""
NUMBER = hanging_job.STILL + 1
"""The barrier before the steps is an all-reduce, too."""


def hung(root: Path) -> Cluster:
    """Return two nodes whose job has hung once, and has then run to its end."""
    words = ("--nproc_per_node", str(RANKS // 2), str(JOB), "--marker", str(root / "marker"))
    nodes = Cluster(
        root,
        workers=1,
        job=("torchrun", "--nnodes", "2", *words, "--rank", str(STILL)),
        ROLLCALL_RECIPE="torchrun",
        ROLLCALL_STEP_PATTERN=r"^step (?P<step>\d+)/(?P<total_steps>\d+)",
        ROLLCALL_HANG_TIMEOUT="90",
    )
    nodes.plain = True
    try:
        nodes.start(HEAD, WORKER)
        assert nodes.exit_codes(within=400) == {HEAD: 0, WORKER: 0}
    finally:
        nodes.close()
    return nodes


@pytest.mark.faults
def test_a_rank_that_loops_elsewhere_is_told_early_and_with_the_hang(tmp_path: Path) -> None:
    nodes = hung(tmp_path)
    named = (
        rf"rank {STILL} on worker-1 \(process \d+\) has not entered all-reduce {NUMBER} \(it is at "
        rf"hanging_job.py:\d+ in loops\); {RANKS - 1} others wait in all-reduce {NUMBER} since "
    )
    (told,) = nodes.events("rank-behind")
    assert re.match(named, told["sentence"])
    expected = {"ranks": [STILL], "nodes": ["worker-1"], "collective": "all-reduce"}
    assert {key: told["details"][key] for key in expected} == expected
    (failure,) = nodes.events("failure")
    assert failure["details"]["failure"] == "hang"
    assert re.search(named, failure["sentence"])
    stacks = (nodes.run.logs / "stacks-attempt-1-worker-1.txt").read_text()
    (process,) = told["details"]["processes"]
    assert f"=== {process} " in stacks
