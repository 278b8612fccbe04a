"""`rollcall serve-reward`: the model's scores over HTTP, in batches."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch

from env.http.client import RemoteReward
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.types import RewardRequest
from tests.support.hub_server import Hub, ask
from tests.support.tiny_reward_model import write_reward_model
from trainer.models.reward_model import ScalarRewardModel
from trainer.models.serve_reward import main
from trainer.models.settings import RewardSettings

REQUESTS = [RewardRequest(f"{n}+{n}={n + n}", f"{n}+{n}=", None) for n in range(40)]


@pytest.mark.slow
def test_requests_of_many_clients_get_the_model_s_scores(tmp_path: Path) -> None:
    model = write_reward_model(tmp_path / "model", "0123456789+=")
    command = [sys.executable, "-m", "entrypoint", "serve-reward", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", "0", "--max-wait-ms", "20"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r" port (\d+)", one) for one in process.stderr)))
        url = f"http://127.0.0.1:{found[1]}"
        client = RemoteReward([f"{url}/get_reward"])
        with ThreadPoolExecutor(20) as threads:
            scores = [s for some in threads.map(client, ([r] for r in REQUESTS)) for s in some]
        too_long = RewardRequest("1" * 100, "1", None)
        (failed,) = client([too_long])
        assert httpx.get(f"{url}/health").json()["scored"] == 41
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
    settings = RewardSettings(models=(str(model),), mixed_precision=False, micro_batch_size=64)
    expected = ScalarRewardModel(str(model), settings, torch.device("cpu")).score(REQUESTS)
    rewards = [score.reward for score in scores]
    assert rewards == pytest.approx([score.reward for score in expected], abs=1e-5)
    assert len(set(rewards)) > 30
    assert "101 tokens" in failed.error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "/none"], "--model /none: no model there (no config.json)"),
        ([], "--model"),
        (["--model", "m", "--port", "x"], "'x' is not a port"),
    ],
)
def test_wrong_flags_are_one_line_and_64(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(words)
    except SystemExit as exit_:
        code = exit_.code
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (os.EX_USAGE, 1)
    assert says in said


def test_a_model_without_a_trained_head_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(TinyModel(hidden_size=16, layers=1, heads=2), "01", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scorer = {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "score"}}
    (tmp_path / "config.json").write_text(json.dumps(config | scorer))
    assert main(["--model", str(tmp_path)]) == os.EX_USAGE
    assert "has no trained score" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("labels", "alphabet", "says"),
    [
        (2, "01", "gives 2 numbers for a text; a reward is one"),
        (1, "0123456789", "tokens without a row in the embedding"),
    ],
)
def test_a_model_that_gives_no_reward_is_refused_as_a_directory_and_by_name(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by_name: bool,
    labels: int,
    alphabet: str,
    says: str,
) -> None:
    model = write_reward_model(tmp_path / "model", "01", num_labels=labels)
    write_model(TinyModel(hidden_size=16, layers=1, heads=2), alphabet, tmp_path / "other")
    for file in (tmp_path / "other").glob("tokenizer*"):
        shutil.copy(file, model)
    with Hub({"owner/model": model}) as served:
        ask(monkeypatch, served.url, tmp_path / "home")
        assert main(["--model", "owner/model" if by_name else str(model)]) == os.EX_USAGE
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("reward server: --model: ")
    assert says in said
