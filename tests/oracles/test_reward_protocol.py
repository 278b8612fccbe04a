"""Rewards over HTTP: OpenRLHF's client asks our servers, our client asks OpenRLHF's server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from env.http.client import RemoteReward
from env.types import RewardRequest
from tests.oracles.process import HERE, OPENRLHF, Peers
from tests.support.tiny_reward_model import write_reward_model
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.settings import RewardSettings

QUERIES = ("1+1=2<eos>", "1+11=3<eos>", "203+4=207<eos>")
PROMPTS = ("1+1=", "1+11=", "203+4=")
LABELS = ("2", "12", "207")


@contextmanager
def served(command: Sequence[str], url: str, **variables: str) -> Iterator[None]:
    """A server that answers at `url` while the block runs."""
    process = subprocess.Popen([sys.executable, *command], env=os.environ | variables)
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            try:
                httpx.get(url, timeout=5)
                break
            except httpx.RequestError:
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def test_openrlhf_s_client_reads_our_rewards_metrics_and_failures(
    peers: Peers, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}/get_reward"
    command = ["-m", "env.server", "--task", "arithmetic", "--host", "127.0.0.1"]
    with served([*command, "--port", str(free_port)], url):
        wanted = {"urls": [url], "queries": QUERIES, "prompts": PROMPTS, "labels": LABELS}
        (answer,) = peers._call("openrlhf_servers", "fetch_rewards", wanted)
        assert answer["rewards"] == answer["scores"] == [1.0, 0.0, 1.0]
        assert answer["extra_logs"] == {"acc": [1.0, 0.0, 1.0], "format": [1.0, 1.0, 1.0]}
        wanted = {"urls": [url], "queries": QUERIES[:1], "prompts": PROMPTS[:1], "labels": ["x"]}
        (answer,) = peers._call("openrlhf_servers", "fetch_rewards", wanted)
        assert answer["rewards"] == [None]


def test_openrlhf_m_s_client_makes_a_tensor_of_every_value(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}/get_reward"
    command = ["-m", "env.server", "--task", "arithmetic", "--host", "127.0.0.1"]
    with served([*command, "--port", str(free_port), "--protocol", "openrlhf-m"], url):
        body = {"query": QUERIES, "prompts": PROMPTS, "labels": LABELS}
        # As its client does it.
        answer = httpx.post(url, json=body).json()
        read = {name: torch.tensor(values) for name, values in answer.items()}
        assert set(read) == {"rewards", "format_rewards", "acc_rewards"}
        assert read["rewards"].tolist() == [1.0, 0.0, 1.0]
        failed = httpx.post(url, json=body | {"labels": ["2", "x", "207"]})
        assert failed.status_code == 500, "its client asks again: it knows no failed reward"
        assert "1 of 3 completions failed" in failed.json()["error"]


@pytest.mark.faults  # their program takes half a minute to start
@pytest.mark.timeout(300)
def test_our_client_reads_the_rewards_of_openrlhf_s_own_server(
    tmp_path: Path, free_port: int
) -> None:
    model = write_reward_model(tmp_path / "model", "0123456789+=")
    url = f"http://127.0.0.1:{free_port}/get_reward"
    command = [str(HERE / "peers" / "openrlhf_servers.py"), "--host", "127.0.0.1"]
    command += ["--port", str(free_port), "--reward.model_name_or_path", str(model)]
    command += ["--ds.attn_implementation", "sdpa", "--data.max_len", "32"]
    requests = [RewardRequest(*one) for one in zip(QUERIES, PROMPTS, LABELS, strict=True)]
    with served(command, url, PYTHONPATH=str(OPENRLHF), TORCHDYNAMO_DISABLE="1"):
        theirs = RemoteReward([url])(requests)
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=4)
    ours = ScalarRewardModel(str(model), settings, torch.device("cpu")).score(requests)
    wanted = [score.reward for score in ours]
    assert [score.reward for score in theirs] == pytest.approx(wanted, rel=0.05, abs=0.01)
    assert theirs[0].metrics == {"dummy_scores": theirs[0].reward}
