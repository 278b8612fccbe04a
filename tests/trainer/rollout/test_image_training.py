"""Whole steps on images, in this process: from the row's path to the updated weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from env.data.prompts import PromptError
from tests.support import colours
from tests.support.tiny_run import Tiny, train
from trainer.cluster.stop import Stopped, StopRequest
from trainer.rollout import episode_setup, image_chat
from trainer.rollout import prompts as data


@pytest.fixture
def task(tmp_path: Path) -> Tiny:
    return colours.make(tmp_path, rows=8)


def weights(model: Path) -> dict[str, Tensor]:
    return load_file(model / "model.safetensors")


def changed(task: Tiny, exported: Path) -> set[str]:
    before, after = weights(task.model), weights(exported)
    assert before.keys() == after.keys()
    return {name for name in before if not before[name].equal(after[name])}


@pytest.mark.parametrize("flags", [{}, {"freeze_visual_encoder": True}, {"async_train": True}])
def test_steps_on_images_change_the_encoder_unless_it_is_frozen(
    task: Tiny, tmp_path: Path, flags: dict[str, Any]
) -> None:
    config = task.config(tmp_path / "run", **colours.FLAGS, max_steps=2, **flags)
    state = train(config, colours.reward)
    assert state.step == 2
    encoder = {name for name in changed(task, config.exported) if "visual" in name}
    assert bool(encoder) is ("freeze_visual_encoder" not in flags)
    assert changed(task, config.exported) - encoder
    assert (config.exported / "preprocessor_config.json").is_file()
    assert json.loads((config.exported / "config.json").read_text())["model_type"] == "qwen2_5_vl"


def test_a_broken_image_costs_its_own_samples_only(
    task: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(whole[: len(whole) // 2])
    config = task.config(tmp_path / "run", **colours.FLAGS, max_steps=2)
    assert train(config, colours.reward).step == 2
    assert "1.png: truncated or damaged" in caplog.text
    assert "begins again" not in caplog.text  # a damaged image stays damaged


def test_a_run_with_images_resumes(task: Tiny, tmp_path: Path) -> None:
    stop = StopRequest()
    flags = {**colours.FLAGS, "save_steps": 1, "async_train": True}

    def stopping(requests: Any) -> Any:
        stop.requested = True
        return colours.reward(requests)

    with pytest.raises(Stopped):
        train(task.config(tmp_path / "run", **flags, max_steps=4), stopping, stop)
    assert train(task.config(tmp_path / "run", **flags, max_steps=4), colours.reward).step == 4


def test_a_wrong_folder_of_images_ends_the_attempt_before_its_first_step(
    task: Tiny, tmp_path: Path
) -> None:
    for answer in colours.ANSWERS:
        (tmp_path / f"{answer}.png").unlink()
    config = task.config(tmp_path / "run", **colours.FLAGS)
    setup, prompts = episode_setup.of_flags(config), data.load(config)
    assert setup is not None
    fault = image_chat.first_fault(setup.runner.chat, prompts.stream.prompts, 32)
    assert fault == f"row 1: {tmp_path / '0.png'}: no such file"


def test_an_agent_is_given_no_images(task: Tiny, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("class AgentExecutor: ...")
    config = task.config(tmp_path / "run", **colours.FLAGS, agent_func_path=agent)
    with pytest.raises(PromptError, match="prompt 1 has an image, and --agent_func_path"):
        data.load(config)
