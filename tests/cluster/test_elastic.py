"""A training over two real nodes loses one, goes on without it, and takes it in again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.node_cluster import HEAD, Cluster
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

WORKER = 1
ALPHABET = "0123456789+="
PATIENCE_SECONDS = 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A head and a worker that hold a policy together, one rank on each."""
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, ALPHABET, tmp_path / "model")
    rows = [json.dumps({"prompt": f"{n % 10}+1=", "answer": str(n % 10 + 1)}) for n in range(64)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    job = [
        *("--pretrain", str(tmp_path / "model"), "--prompt_data", str(tmp_path / "prompts.jsonl")),
        *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "arithmetic"),
        *("--rollout_batch_size", "8", "--train_batch_size", "8", "--micro_train_batch_size", "4"),
        *("--generate_max_len", "3", "--advantage_estimator", "reinforce", "--init_kl_coef", "0"),
        *("--actor_num_nodes", "2", "--num_episodes", "100000", "--save_steps", "5"),
        *("--max_ckpt_num", "2"),
    ]
    more = {"ROLLCALL_RECIPE": "builtin", "ROLLCALL_MIN_WORKERS": "0"}
    # Enough for the save that a busy machine takes its time for.
    patience = {
        "ROLLCALL_REPLACE_TIMEOUT": f"{PATIENCE_SECONDS}s",
        "ROLLCALL_GRACE_SECONDS": "30",
    }
    cluster = Cluster(tmp_path / "cluster", 1, job, **more, **patience)
    yield cluster
    cluster.close()


@pytest.mark.faults
def test_a_lost_worker_is_done_without_and_taken_in_again_at_the_next_checkpoint(
    cluster: Cluster,
) -> None:
    cluster.start(HEAD, WORKER)
    cluster.event("checkpoint", within=120)
    cluster.kill(WORKER)
    cluster.resumes(1, within=120)
    assert cluster.events("resume")[-1]["details"]["step"] > 0
    assert "--actor_num_nodes 1" in cluster.events("attempt")[1]["sentence"]

    cluster.start(WORKER)
    cluster.resumes(2, within=120)
    answers = [event["details"]["answer"] for event in cluster.events("decision")]
    assert answers == ["resume", "shrink", "grow"]
    assert cluster.events("attempt")[2]["sentence"].count("--") == 0
    of_second = [event for event in cluster.events("step") if event["attempt"] == 2]
    assert cluster.events("resume")[-1]["details"]["step"] == of_second[-1]["details"]["step"]
    assert [event["details"]["failure"] for event in cluster.events("failure")] == ["node_lost"]
    assert_no_step_is_lost_or_done_twice(cluster.run)
