"""The run of OpenRLHF-M's guide: three pods of RunPod's templates train a Qwen2.5-VL.

The task is which colour fills a picture, with the rows of MathV60K. The head starts the reward
server, as the guide's script does.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.run_dir import RunFiles
from tests.container.platform_nodes import Machines, Shared, start_pods
from tests.support import colour_rows
from tests.support.tiny_run import to_argv
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.container, pytest.mark.faults, pytest.mark.timeout(600)]

OPTIONS = ("--shm-size=512m", "--memory=4g", "--pids-limit=-1")
REWARD = "http://127.0.0.1:5000/get_reward"
SERVER = "python -m env.server --task mathvista --port 5000"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_pods_learn_to_see_a_colour(seed: int, tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "run").mkdir(parents=True)
    colour_rows.make(root)
    job = {
        "pretrain": "/workspace/model",
        "prompt_data": "/workspace/train/mathv60k_message.jsonl",
        "eval_dataset": "/workspace/eval/mathv60k_message.jsonl",
        **colour_rows.FLAGS,
        "remote_rm_url": REWARD,
        "seed": seed,
    }
    service = {"ROLLCALL_REWARD_COMMAND": SERVER, "ROLLCALL_REWARD_URL": REWARD}
    with Machines(Shared(root)) as machines:
        start_pods(machines, to_argv(job), OPTIONS, **service)
        codes = [node.exit_code(within=500) for node in machines.nodes]
        assert codes == [0, 0, 0], machines.report()
    run = RunFiles(root / "run")
    result = json.loads(run.result.read_text())
    steps = colour_rows.FLAGS["max_steps"]
    assert (result["outcome"], result["attempts"], result["steps"]) == ("finished", 1, steps)
    assert_no_step_is_lost_or_done_twice(run)
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert {row["train/reward_failed"] for row in rows if "train/reward" in row} == {0}
    colour_rows.assert_seeing_was_learned(rows)
