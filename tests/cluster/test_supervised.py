"""`rollcall rm` on two real nodes, and the model that it writes as a reward server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from env.http.client import RemoteReward
from env.types import RewardRequest
from tests.support.node_cluster import HEAD, Cluster, result
from tests.support.tiny_run import Tiny, to_argv

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

WORKER = 1
PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "="} for n in range(32)]


@pytest.mark.faults
def test_a_reward_model_is_trained_on_both_nodes_and_served(tiny: Tiny, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text("\n".join(map(json.dumps, PAIRS)))
    flags = {
        "pretrain": tiny.model,
        "dataset": data,
        "prompt_key": "prompt",
        "train_batch_size": 8,
        "max_steps": 16,
        "max_epochs": 4,
        "learning_rate": 1e-2,
        "save_steps": 10,
    }
    nodes = Cluster(tmp_path, 1, ("rm", *to_argv(flags)), ROLLCALL_RECIPE="")
    try:
        nodes.start(HEAD, WORKER)
        assert nodes.exit_codes(within=250) == {HEAD: 0, WORKER: 0}, nodes.consoles()
        assert nodes.left() == []
    finally:
        nodes.close()
    assert (result(nodes)["outcome"], result(nodes)["steps"]) == ("finished", 16)
    assert (nodes.run.logs / "attempt-1-rank-1.log").exists()
    assert (nodes.run.root / "checkpoints/checkpoint-10").is_dir()
    better, worse = served(nodes.run.exported, "7+1=8", "7+1==")
    assert better > worse + 0.3


def served(model: Path, *texts: str) -> list[float]:
    """The rewards that the server of a model gives."""
    command = [sys.executable, "-m", "entrypoint", "serve-reward", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r" port (\d+)", one) for one in process.stderr)))
        client = RemoteReward([f"http://127.0.0.1:{found[1]}/get_reward"])
        requests = [RewardRequest(text, "", None) for text in texts]
        with ThreadPoolExecutor(1) as thread:  # a browser of other tests has this one's event loop
            return [score.reward for score in thread.submit(client, requests).result()]
    finally:
        process.kill()
        process.communicate()
