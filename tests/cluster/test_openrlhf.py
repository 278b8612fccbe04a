"""Two real nodes with a stand-in for OpenRLHF's trainer: layout, a crash, and the resume."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import openrlhf_stand_in
from tests.support.node_cluster import HEAD, Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WORKER = 1


def test_the_layout_is_that_of_the_roll_and_a_crash_costs_the_steps_since_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    script = str(Path(openrlhf_stand_in.__file__))
    nodes = Cluster(
        tmp_path,
        workers=1,
        job=(sys.executable, script, "--train.steps", "12", "--ckpt.save_steps", "2"),
        ROLLCALL_RECIPE="openrlhf",
        ROLLCALL_NUM_GPUS="1",  # which only Ray believes in
        ROLLCALL_PREFLIGHT_SKIP="gpu.count",
        ROLLCALL_RUNTIME_ENV='{"env_vars": {"NCCL_DEBUG": "INFO"}}',
    )
    try:
        nodes.start(HEAD, WORKER)
        assert nodes.exit_codes(within=150) == {HEAD: 0, WORKER: 0}
        assert nodes.left() == []
    finally:
        nodes.close()
    assert (result(nodes)["outcome"], result(nodes)["steps"]) == ("finished", 12)
    attempts = [event["details"]["resume_from"] for event in nodes.events("attempt")]
    assert attempts == [0, 6]
    assert result(nodes)["reward_last"] == pytest.approx(0.12)
    log = (nodes.run.logs / "attempt-2.log").read_text()
    assert "Global step 7: " in log
    assert "Global step 6: " not in log
    assert (nodes.run.root / "hf/config.json").is_file()
