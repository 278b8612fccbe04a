"""The layout of a larger run on three machines, with the engine of production."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from env.prepare.__main__ import main as prepare
from tests.container.cluster import Cluster
from trainer.supervised.__main__ import main as supervised

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

STEPS, WINDOW = 24, 4
SHARDED = (
    *("--actor_num_nodes", "2", "--actor_num_gpus_per_node", "1", "--zero_stage", "3"),
    *("--rollout_engine", "vllm", "--vllm_num_engines", "2", "--enforce_eager"),
    *("--actor_resources", '{"trains": 1}', "--vllm_resources", '{"writes": 1}'),
    *("--critic_resources", '{"judges": 1}', "--ref_resources", '{"judges": 1}'),
)
LEARNING = (
    *("--input_key", "prompt", "--label_key", "answer", "--remote_rm_url", "arithmetic"),
    *("--rollout_batch_size", "16", "--n_samples_per_prompt", "8"),
    *("--train_batch_size", "64", "--micro_train_batch_size", "64"),
    *("--micro_rollout_batch_size", "128", "--prompt_max_len", "8", "--generate_max_len", "4"),
    *("--advantage_estimator", "gae", "--init_kl_coef", "0.001"),
    *("--actor_learning_rate", "2e-3", "--critic_learning_rate", "4e-3"),
    *("--lr_scheduler", "constant", "--lr_warmup_ratio", "0", "--is_correction_level", "token"),
    *("--max_steps", str(STEPS), "--save_steps", str(STEPS)),
)
WORKER = json.dumps({"trains": 1, "writes": 1})
HEAD = json.dumps({"judges": 2})


@pytest.fixture(scope="module")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sums such as 3+4=, and a model that writes one in three right; heads as vLLM has them."""
    data = tmp_path_factory.mktemp("sums")
    task = ["--max-operand", "4", "--train-size", "25", "--warmup-size", "25", "--eval-size", "1"]
    shape = ["--layers", "1", "--hidden-size", "64", "--heads", "2", "--max-length", "16"]
    assert prepare(["arithmetic", "--out", str(data), *task, *shape]) == 0
    teaching = [
        *("sft", "--pretrain", str(data / "model"), "--dataset", str(data / "warmup.jsonl")),
        *("--save_path", str(data / "warm"), "--max_steps", "40", "--max_epochs", "40"),
        *("--train_batch_size", "32", "--micro_train_batch_size", "32"),
        *("--learning_rate", "3e-3"),
    ]
    assert supervised(teaching) == 0
    return data


@pytest.mark.faults
def test_a_policy_sharded_over_two_workers_learns_sums_that_two_vllm_engines_write(
    tmp_path: Path, beginner: Path
) -> None:
    job = ("--pretrain", "/data/warm", "--prompt_data", "/data/train.jsonl", *SHARDED, *LEARNING)
    with Cluster(tmp_path / "cluster", beginner, memory="6g") as cluster:
        cluster.head(*job, ROLLCALL_RESOURCES=HEAD)
        for number in (1, 2):
            cluster.worker(number, ROLLCALL_RESOURCES=WORKER)
        assert cluster.exit_codes(within=400) == {"head": 0, "worker-1": 0, "worker-2": 0}
        (placed,) = cluster.watch.events("layout")
        rows = [json.loads(line) for line in cluster.run.metrics.read_text().splitlines()]
    said = placed["sentence"]
    for place in ("policy: 1 CPU slot on worker-1, worker-2", "reference: 1 CPU slot on head"):
        assert place in said
    steps = [row for row in rows if "train/reward" in row]
    assert len(steps) == STEPS
    # What the engines say of their tokens is what the policy says: they have its newest weights.
    assert [row["train/vllm_kl"] for row in steps] == pytest.approx([0] * STEPS, abs=1e-3)
    first, last = steps[:WINDOW], steps[-WINDOW:]
    assert fmean(r["train/reward"] for r in last) > fmean(r["train/reward"] for r in first) + 0.2
