"""The layout of a real job on a real head and a worker is kept to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support.hub_server import Hub
from tests.support.node_cluster import HEAD, Cluster
from tests.support.tiny_reward_model import write_reward_model

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ALPHABET = "0123456789+="


class WithV100s(Cluster):
    """The worker, and it alone, offers a custom resource."""

    def environment(self, number: int) -> dict[str, str]:
        more = {} if number == HEAD else {"ROLLCALL_RESOURCES": '{"v100": 1}'}
        return super().environment(number) | more


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    shape = TinyModel(hidden_size=16, layers=1, heads=2, max_length=32)
    write_model(shape, ALPHABET, tmp_path / "model")
    judges = [write_reward_model(tmp_path / f"judge{n}", ALPHABET[::-1], seed=n) for n in (1, 2)]
    rows = [json.dumps({"prompt": f"{n}+1="}) for n in range(16)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    return [
        *("--pretrain", str(tmp_path / "model"), "--prompt_data", str(tmp_path / "prompts.jsonl")),
        *("--input_key", "prompt", "--reward_pretrain", ",".join(map(str, judges))),
        *("--rollout_batch_size", "8", "--train_batch_size", "8", "--generate_max_len", "3"),
        *("--advantage_estimator", "reinforce", "--max_steps", "1"),
        *("--ref_resources", '{"v100": 1}'),
    ]


def end_of(cluster: Cluster, *nodes: int) -> dict[int, int]:
    try:
        cluster.start(*nodes)
        return cluster.exit_codes(within=200)
    finally:
        cluster.close()


@pytest.mark.faults
def test_a_job_by_name_runs_where_the_plan_puts_it_with_rewards_from_models(
    job: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    named = ["--pretrain", "owner/model", *job[2:]]
    with Hub({"owner/model": model}) as hub:
        cluster = WithV100s(
            tmp_path / "run",
            workers=1,
            job=named,
            ROLLCALL_RECIPE="builtin",
            HF_ENDPOINT=hub.url,
            HF_HOME=str(tmp_path / "home"),
            HF_HUB_DISABLE_XET="1",
        )
        assert end_of(cluster, HEAD, 1) == {HEAD: 0, 1: 0}, cluster.consoles()
        assert hub.downloads == dict.fromkeys(
            (f"owner/model/{path.name}" for path in model.iterdir()), 1
        )
    (placed,) = cluster.events("layout")
    assert "reference: 1 CPU slot on worker-1" in placed["sentence"]
    rows = [json.loads(line) for line in cluster.run.metrics.read_text().splitlines()]
    (step,) = [row for row in rows if "train/reward" in row]
    each = [step["train/reward_model_1"], step["train/reward_model_2"]]
    assert step["train/reward"] == pytest.approx(sum(each) / 2, abs=1e-5)
