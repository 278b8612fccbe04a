"""OpenRLHF's agent files, run as they are."""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from env.environments.openrlhf_agent import AgentAttempt, SamplingParams, load_agent
from env.episodes.types import (
    Context,
    EnvironmentFailedError,
    Episode,
    Generated,
    Limits,
    StopReason,
    Task,
)
from env.rewards.python_file import RewardFileError
from env.types import Score
from tests.support.agent_files import AGENT, write
from tests.support.chats import Scripted, tokenizer

TASK = Task(3, [{"role": "user", "content": "2+3="}], label="5", text="2+3=")
LIMITS = Limits(reply=50, total=400, seconds=5)


def episode_of(path: Path, replies: list[str], limits: Limits = LIMITS) -> tuple[Episode, Any]:
    tokens = tokenizer(None)
    attempt = AgentAttempt(load_agent(path), tokens, limits, SamplingParams(limits.reply, 1.0, 1.0))
    return asyncio.run(attempt(TASK, Scripted(tokens, replies))), tokens


def test_an_agent_of_steps(tmp_path: Path) -> None:
    episode, tokens = episode_of(write(tmp_path), ["a", "bb", "ccc"])
    actions = [t for t, m in zip(episode.tokens, episode.action_mask, strict=True) if m]
    assert tokens.decode(actions) == "a</s>bb</s>ccc</s>"
    whole = "2+3=begin a</s>\n[5] again: bb</s>\n[5] again: ccc</s>"
    assert tokens.decode(episode.tokens) == whole
    assert episode.score is not None
    assert episode.score.reward == 3 * 0.5 + 1 + 2 + 3  # as vLLM's text: without the end token
    assert episode.score.metrics == {"turn_count": 3.0, "acc": 1.0}
    assert episode.stop is StopReason.DONE
    chosen = [v for v, m in zip(episode.versions, episode.action_mask, strict=True) if m]
    assert set(chosen) == {3}
    assert {lp for lp, m in zip(episode.log_probs, episode.action_mask, strict=True) if m} == {-0.5}
    assert "openrlhf" not in sys.modules


def test_an_agent_has_at_most_the_tokens_of_an_episode(tmp_path: Path) -> None:
    limits = Limits(reply=5, total=30, seconds=5)
    episode, _ = episode_of(write(tmp_path), ["long enough"] * 3, limits)
    assert len(episode.tokens) <= 30
    assert episode.stop is StopReason.TOTAL_LENGTH


CUSTOM = """\
from openrlhf.utils.agent import AgentExecutorBase


class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine,
                      images=None):
        tokens = hf_tokenizer(prompt, add_special_tokens=False)["input_ids"]
        sampling_params.max_tokens = 3
        answer = await llm_engine.generate(tokens, sampling_params)
        written = answer.outputs[0]
        return {
            "observation_tokens": tokens + written.token_ids,
            "action_ranges": [(len(tokens), len(tokens) + len(written.token_ids))],
            "reward": REWARD,
            "truncated": written.finish_reason == "length",
        }
"""


ASKS = "answer = await llm_engine.generate(tokens, sampling_params)"


def test_an_executor_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, CUSTOM.replace("REWARD", "1.5"))
    episode, _ = episode_of(path, ["abcdef"])
    assert episode.text == "abc"
    assert episode.score is not None
    assert episode.score.reward == 1.5
    assert episode.stop is StopReason.TOTAL_LENGTH


AT_ONCE = """\
import asyncio

from openrlhf.utils.agent import AgentExecutorBase


class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine,
                      images=None):
        tokens = hf_tokenizer(prompt, add_special_tokens=False)["input_ids"]
        asked = [llm_engine.generate(tokens, sampling_params) for _ in range(2)]
        ranges = []
        for answer in await asyncio.gather(*asked):
            written = answer.outputs[0].token_ids
            ranges.append((len(tokens), len(tokens) + len(written)))
            tokens = tokens + written
        return {"observation_tokens": tokens, "action_ranges": ranges, "reward": 1.0}
"""


def test_replies_that_are_written_at_once_belong_to_the_calls_in_order(tmp_path: Path) -> None:
    """The first of two calls is answered last, and the engine's time is none of the agent's."""
    tokens = tokenizer(None)
    script, number = Scripted(tokens, ["first", "other"]), itertools.count()

    async def generate(context: Context) -> Generated:
        at = next(number)
        written = await script(context)
        await asyncio.sleep(0.1 if at else 0.5)
        return replace(written, versions=[at] * len(written.tokens))

    limits = Limits(reply=50, total=400, seconds=0.3)
    agent = load_agent(write(tmp_path, AT_ONCE))
    attempt = AgentAttempt(agent, tokens, limits, SamplingParams(limits.reply, 1.0, 1.0))
    episode = asyncio.run(attempt(TASK, generate))
    assert episode.text == "first</s>other"
    chosen = [v for v, m in zip(episode.versions, episode.action_mask, strict=True) if m]
    assert chosen == [0] * 6 + [1] * 6


@pytest.mark.parametrize(("scores", "acc"), [('"scores": 1.0, ', 1.0), ("", 0.25)])
def test_what_an_agent_logs_may_have_any_name(tmp_path: Path, scores: str, acc: float) -> None:
    logged = f'1.5, {scores}"extra_logs": {{"reward": 9, "acc": 0.25}}'
    episode, _ = episode_of(write(tmp_path, CUSTOM.replace("REWARD", logged)), ["a"])
    assert episode.score == Score.of(1.5, **{"reward": 9.0, "acc": acc})


@pytest.mark.parametrize("reward", ["float('nan')", "'good'"])
def test_a_reward_that_is_no_number_is_a_failed_score(tmp_path: Path, reward: str) -> None:
    episode, _ = episode_of(write(tmp_path, CUSTOM.replace("REWARD", reward)), ["a"])
    assert episode.score is not None
    assert not episode.score.ok


def test_no_reward_leaves_the_score_to_the_reward_function(tmp_path: Path) -> None:
    assert episode_of(write(tmp_path, CUSTOM.replace("REWARD", "None")), ["a"])[0].score is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AGENT.replace('"rewards"', '"reward"'), "execute raised KeyError: 'rewards'"),
        (AGENT.replace("done = self", "raise SystemExit(3); done = self"), "SystemExit: 3"),
        (AGENT.replace("done = self", "raise KeyboardInterrupt; done = self"), "KeyboardInterrupt"),
        (
            AGENT.replace('states["observation"] + "begin "', '""'),
            "wants a reply to a text without a token",
        ),
        (
            AGENT.replace("done = self", "import asyncio; await asyncio.sleep(9); done = self"),
            "took 0.2 s",
        ),
        (
            CUSTOM.replace('"reward": REWARD', '"reward": 1.0').replace(
                "tokens + written.token_ids", "tokens + [t + 1 for t in written.token_ids]"
            ),
            "has other tokens than the engine wrote",
        ),
        (
            CUSTOM.replace('"reward": REWARD', '"rollout_log_probs": [-0.5] * 3'),
            "rollout_log_probs has 3 numbers, and observation_tokens has",
        ),
        (
            CUSTOM.replace("REWARD", "1.0").replace(ASKS, f"{ASKS}; {ASKS}"),
            "action_ranges has 1 ranges, and the engine wrote 2 replies: each reply needs its",
        ),
        (
            CUSTOM.replace("REWARD", "1.0").replace("[(len(tokens), len", "[(9, len"),
            r"action_ranges has \(9, 6\), where a range from 0 on is wanted",
        ),
        (
            CUSTOM.replace("REWARD", "1.0").replace("[(len(tokens), len", "[(0, len"),
            r"action_ranges \(0, \d+\) has \d+ tokens, and the engine wrote 2",
        ),
    ],
)
def test_an_agent_that_fails_is_a_failed_environment(
    tmp_path: Path, text: str, message: str
) -> None:
    limits = Limits(reply=50, total=400, seconds=0.2)
    with pytest.raises(EnvironmentFailedError, match=message):
        episode_of(write(tmp_path, text), ["a"] * 3, limits)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no class AgentExecutor"),
        ("import nothing_like_it", "ModuleNotFoundError"),
        ("class AgentExecutor: pass", "no method execute"),
        ("class AgentExecutor:\n    def __init__(self, x): pass", "TypeError"),
        ("class AgentExecutor:\n    def __init__(self): raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_file_without_an_agent_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RewardFileError, match=message):
        load_agent(write(tmp_path, text))
