"""Search-R1's episodes with tags that are special tokens, whose replies vLLM writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from contract.background import in_background
from env.episodes.chat import PlainChat
from env.episodes.episode import run_episode
from env.episodes.types import Context, Episode, Generated, Limits, StopReason, Task
from tests.support import tags
from tests.support.tiny_run import Tiny
from tests.support.vllm import settings
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.episodes import generated
from trainer.rollout.vllm_engine import VLLMEngine
from trainer.types import Request

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(480)]


def test_an_episode_searches_and_answers(tmp_path: Path) -> None:
    # In a thread of its own: tests with a browser leave a loop in the main one.
    episode = in_background("episode", lambda: asyncio.run(episode_of(tmp_path))).result()
    assert episode.stop is StopReason.DONE
    assert episode.text == tags.INFORMATION.join(tags.REPLIES)
    assert (episode.metrics["searches"], episode.metrics["invalid_actions"]) == (1, 0)


async def episode_of(root: Path) -> Episode:
    model = tags.write_tagged_model(root / "model")
    engine = VLLMEngine(settings(Tiny(model, root, root)))
    sampling = SamplingSettings(max_new_tokens=20)

    async def policy(context: Context) -> Generated:
        (one,) = engine.generate([Request("", (1,), context)], sampling)
        return generated(context, one)

    task = Task(0, [{"role": "user", "content": tags.QUESTION}], label="J")
    chat = PlainChat(AutoTokenizer.from_pretrained(model))
    limits = Limits(turns=3, reply=20, total=200)
    return await run_episode(tags.searching(root), task, chat, policy, limits)
