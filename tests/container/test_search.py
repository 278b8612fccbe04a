"""Search-R1 in containers: a retrieval server on each of three nodes; one is killed on the way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.container.cluster import Cluster
from tests.support import people
from tests.support.podman import Container
from tests.support.tiny_run import Tiny, to_argv
from tests.support.watch import assert_no_step_is_lost_or_done_twice

pytestmark = [pytest.mark.container, pytest.mark.faults, pytest.mark.timeout(600)]

HEALTH = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/health').read().decode())"
)
RETRIEVER = {
    "ROLLCALL_RETRIEVER_COMMAND": "rollcall serve-retriever --index /data/index --host 0.0.0.0",
    "ROLLCALL_RETRIEVER_URL": "http://127.0.0.1:8000/retrieve",
}
KILLED = "worker-1"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    root = tmp_path_factory.mktemp("people")
    root.chmod(0o777)
    return people.make(root)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_nodes_search_and_a_killed_retriever_costs_no_step(
    seed: int, task: Tiny, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "cluster", task.prompts.parent) as cluster:
        nodes = ("head", "worker-1", "worker-2")
        urls = [f"http://{cluster.name}-{node}:8000/retrieve" for node in nodes]
        job = {
            "pretrain": "/data/warm",
            "prompt_data": "/data/train.jsonl",
            "eval_dataset": "/data/eval.jsonl",
            "input_key": "prompt",
            "label_key": "answer",
            **people.FLAGS,
            "environment_args": people.arguments(*urls),
            "seed": seed,
        }
        cluster.head(*to_argv(job), workers=2, **RETRIEVER)
        for number in (1, 2):
            cluster.worker(number, **RETRIEVER)
        cluster.watch.until(lambda: cluster.watch.step >= 5, "step 5", within=200)
        (server,) = cluster.nodes[KILLED].pids("env.retrieval.server")
        before = searched(cluster.nodes[KILLED])
        os.kill(server, signal.SIGKILL)
        ended = "the retriever server ended with 137"
        cluster.watch.until(lambda: ended in cluster.nodes[KILLED].said, ended, within=30)
        cluster.watch.until(
            lambda: all(searched(node) > 0 for node in cluster.nodes.values()),
            "searches on every node after the kill",
            within=120,
        )
        assert before > 0
        assert cluster.exit_codes(within=300) == dict.fromkeys(nodes, 0)
        result = json.loads(cluster.run.result.read_text())
        steps = people.FLAGS["max_steps"]
        assert (result["outcome"], result["attempts"], result["steps"]) == ("finished", 1, steps)
        rows = [json.loads(line) for line in cluster.run.metrics.read_text().splitlines()]
    assert_no_step_is_lost_or_done_twice(cluster.run)
    trained = [row for row in rows if "train/reward" in row]
    assert [row["step"] for row in trained] == list(range(1, steps + 1))
    assert {row["train/reward_failed"] for row in trained} == {0}
    people.assert_searching_was_learned(rows)


def searched(node: Container) -> int:
    """Return the queries that a node's server has searched since its start; 0 if it is down."""
    asked = node.execute("python", "-c", HEALTH)
    return int(json.loads(asked.stdout)["searched"]) if asked.returncode == 0 else 0
