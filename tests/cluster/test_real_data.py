"""The same job on real problems: the way of the data, from the files to trained steps."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node_cluster import HEAD, Cluster
from tests.support.repository import ROOT
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

WHOLE = ROOT.parent / "shared" / "data" / "gsm8k"
EXCERPT = ROOT / "env" / "prepare" / "gsm8k_excerpt"
STEPS = 20


@pytest.mark.faults
def test_twenty_steps_of_grpo_on_gsm8k_end_0_with_every_reward_known(tmp_path: Path) -> None:
    source = WHOLE if WHOLE.is_dir() else EXCERPT
    data = tmp_path / "gsm8k"
    prepare = ["env.prepare", "gsm8k", "--source", str(source), "--out", str(data), "--tiny-model"]
    subprocess.run([sys.executable, "-m", *prepare, "--max-samples", "400"], check=True)
    job = [
        *("--pretrain", str(data / "model"), "--prompt_data", str(data / "train.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "gsm8k"),
        *("--advantage_estimator", "group_norm", "--n_samples_per_prompt", "4"),
        *("--rollout_batch_size", "4", "--train_batch_size", "16"),
        *("--micro_train_batch_size", "8", "--generate_max_len", "32"),
        *("--init_kl_coef", "0", "--max_steps", str(STEPS), "--save_steps", "10"),
    ]
    cluster = Cluster(tmp_path / "run", workers=0, job=job, ROLLCALL_RECIPE="builtin")
    try:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=240) == {HEAD: 0}, cluster.consoles()
    finally:
        cluster.close()
    rows = [json.loads(line) for line in cluster.run.metrics.read_text().splitlines()]
    steps = [row for row in rows if "train/reward" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert all(row["train/reward_failed"] == 0 for row in steps)
    assert all(math.isfinite(row["train/policy_loss"]) for row in steps)
    assert_no_step_is_lost_or_done_twice(cluster.run)
