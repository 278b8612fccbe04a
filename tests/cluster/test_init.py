"""What `rollcall init` writes for a platform is a run that `up` brings to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoint.commands import init
from env.prepare.tiny_model import TinyModel
from tests.support.init_files import job_of
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PLATFORMS = ("slurm", "kubernetes", "dstack", "skypilot")
SMALL = (
    *("--rollout_batch_size", "4", "--n_samples_per_prompt", "2", "--train_batch_size", "4"),
    *("--micro_train_batch_size", "2", "--generate_max_len", "3", "--prompt_max_len", "8"),
    *("--max_steps", "2", "--save_steps", "2"),
)
"""Flags of the command line beat those of run.yaml."""


def test_the_runs_of_four_platforms_are_one_job_that_finishes(tmp_path: Path) -> None:
    from env.prepare.model import write_model

    shared = tmp_path / "shared"
    shared.mkdir()
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, "0123456789+=", shared / "model")
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (shared / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    jobs = []
    for platform in PLATFORMS:
        for made in ("run.yaml", "reward.py", "test_reward.py"):
            (shared / made).unlink(missing_ok=True)
        words = ["--dir", str(shared), "--shared", str(shared), "--model", "model", "--gpus", "0"]
        assert init.main([*words, "--platform", platform, "--yes"]) == 0
        jobs.append(job_of(platform, shared))
    assert all(job == jobs[0] for job in jobs)
    cluster = Cluster(
        tmp_path / "run", workers=0, job=[*jobs[0], *SMALL], ROLLCALL_RECIPE="builtin"
    )
    try:
        cluster.start(HEAD)
        assert cluster.exit_codes(within=480) == {HEAD: 0}, cluster.said(HEAD)
    finally:
        cluster.close()
    assert "reward.py:reward, row 1: '1' → 1" in cluster.said(HEAD)
    steps = [json.loads(line) for line in cluster.run.metrics.read_text().splitlines()]
    assert max(row["step"] for row in steps) == 2
    assert (cluster.run.exported / "config.json").exists()
