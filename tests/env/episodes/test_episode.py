"""Episodes: tokens and mask, limits with their stop reasons, failing environments."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from env.episodes.chat import PlainChat, TemplateChat
from env.episodes.environment import SingleTurn, request_of
from env.episodes.episode import run_episode
from env.episodes.messages import shortened, without_beginning
from env.episodes.types import (
    Limits,
    StopReason,
    Task,
    Turn,
)
from env.rewards import arithmetic
from env.types import Prompt, Score, ScoreStatus
from tests.support.chats import Scripted, tokenizer
from tests.support.environments import LIMITS, Answering, Wrong, run, said, spans


def test_the_mask_parts_replies_from_observations() -> None:
    environment = Answering(Turn(said("And 3+4?")), Turn(done=True))
    episode, _, tokens = run(environment, ["5", "7"])
    first, *rest = spans(episode, tokens)
    assert not first[0]
    assert rest == [
        (True, "5<|im_end|>"),
        (False, "\n<|im_start|>user\nAnd 3+4?<|im_end|>\n<|im_start|>assistant\n"),
        (True, "7<|im_end|>"),
    ]
    assert episode.stop is StopReason.DONE
    assert environment.closed == 1
    assert [m["content"] for m in episode.messages] == ["What is 2+3?", "5", "And 3+4?", "7"]


def test_each_context_begins_with_the_very_tokens_before() -> None:
    """Also with tokens that the tokeniser would not choose: `ab` as two tokens of a byte each."""
    episode, policy, _ = run(Answering(Turn(said("?")), Turn(said("!")), Turn(done=True)), "123")
    for context in policy.contexts:
        assert list(context.tokens) == episode.tokens[: len(context.tokens)]
    assert [v for v, m in zip(episode.versions, episode.action_mask, strict=True) if m] == [3] * 6
    assert {v for v, m in zip(episode.versions, episode.action_mask, strict=True) if not m} == {-1}


def test_turn_rewards_stand_at_the_last_token_of_their_reply() -> None:
    environment = Answering(Turn(said("?"), reward=0.5), Turn(said("?")), Turn(done=True, reward=2))
    episode, _, _ = run(environment, ["a", "b", "c"])
    lasts = [
        i
        for i, m in enumerate(episode.action_mask)
        if m and not any(episode.action_mask[i + 1 : i + 2])
    ]
    assert episode.turn_rewards == {lasts[0]: 0.5, lasts[2]: 2.0}


def test_text_continues_the_reply_without_separators() -> None:
    episode, _, tokens = run(Answering(Turn(text="<info>x</info>"), Turn(done=True)), ["q", "a"])
    assert spans(episode, tokens)[2] == (False, "<info>x</info>")
    assert episode.text == "q<|im_end|><info>x</info>a"


OVER = [
    (replace(LIMITS, turns=2), StopReason.TURNS, 2),
    (replace(LIMITS, total=130), StopReason.OBSERVATION_LENGTH, 1),
    (replace(LIMITS, seconds=0.05), StopReason.WALL_TIME, 1),
]


@pytest.mark.parametrize(("limits", "stop", "turns"), OVER)
def test_each_limit_has_its_stop_reason(limits: Limits, stop: StopReason, turns: int) -> None:
    waits = [10.0] if stop is StopReason.WALL_TIME else []
    environment = Answering(*waits, *[Turn(said("more " * 10))] * 9)
    episode, _, _ = run(environment, ["a"] * 9, limits)
    assert (episode.stop, episode.turns) == (stop, turns)
    assert len(episode.tokens) <= limits.total
    assert episode.score == Score.of(1.0)
    assert environment.closed == 1


def test_a_reply_that_fills_the_episode_ends_it() -> None:
    begun = len(run(Answering(Turn(done=True)), ["a"])[0].tokens) - 2
    limits = replace(LIMITS, total=begun + 3)
    episode, policy, _ = run(Answering(Turn(said("?"))), ["long enough"], limits)
    assert episode.stop is StopReason.TOTAL_LENGTH
    assert policy.contexts[0].limit == 3
    assert len(episode.tokens) == limits.total


def test_the_last_reply_is_announced() -> None:
    environment = Answering(*[Turn(said("?"))] * 3)
    run(environment, "abc", replace(LIMITS, turns=3))
    assert [reply.last for reply in environment.replies] == [False, False, True]


def test_a_long_observation_is_cut_and_the_separators_stay() -> None:
    environment = Answering(Turn(said("x" * 10_000_000)), Turn(done=True))
    episode, _, tokens = run(environment, ["a", "b"], replace(LIMITS, observation=7))
    observed = spans(episode, tokens)[2][1]
    assert observed == "\n<|im_start|>user\nxxxxxxx<|im_end|>\n<|im_start|>assistant\n"
    assert episode.metrics["observations_cut"] == 1


def test_the_texts_of_parts_share_the_limit_of_an_observation() -> None:
    image = {"type": "image", "image": "a.png"}
    parts = [{"type": "text", "text": text} for text in ("abc", "x" * 10_000_000, "lost")]
    turn = Turn([{"role": "user", "content": [image, *parts]}])
    (message,), _, is_cut = shortened(turn, TemplateChat(tokenizer("qwen2_5")), 7)
    assert message["content"][0] == image
    assert [part["text"] for part in message["content"][1:]] == ["abc", "xxxx", ""]
    assert is_cut


def test_a_first_context_that_is_too_long_loses_its_beginning() -> None:
    whole, _, _ = run(Answering(Turn(done=True)), ["a"])
    episode, policy, _ = run(Answering(Turn(done=True)), ["a"], replace(LIMITS, prompt=10))
    assert len(policy.contexts[0].tokens) == 10
    assert episode.tokens == whole.tokens[-len(episode.tokens) :]


def test_megabytes_of_a_first_context_are_cut_before_they_are_tokenised() -> None:
    messages = [*said("y" * 20_000_000), *said("x" * 20_000_000 + "The end.")]
    begun = time.monotonic()
    _, policy, tokens = run(Wrong("reset", messages), ["a"], replace(LIMITS, prompt=60))
    assert time.monotonic() - begun < 2
    (context,) = policy.contexts
    assert len(context.tokens) == 60
    assert tokens.decode(context.tokens).endswith("xxThe end.<|im_end|>\n<|im_start|>assistant\n")


def test_the_texts_of_parts_lose_their_beginning_together() -> None:
    image = {"type": "image", "image": "a.png"}
    parts = [{"type": "text", "text": text} for text in ("lost", "abc")]
    content = [parts[0], image, parts[1]]
    messages: list[Any] = [*said("gone"), {"role": "user", "content": content}]
    first, second = without_beginning(messages, 5)
    assert first["content"] == ""
    assert [part.get("text") for part in second["content"]] == ["st", None, "abc"]
    assert without_beginning(messages, 99) == messages


def test_a_text_and_messages_end_the_message_between_them() -> None:
    environment = Answering(Turn(said("And 3+4?"), text=" Right."), Turn(done=True))
    episode, _, tokens = run(environment, ["5", "7"])
    assert spans(episode, tokens)[2][1].startswith(" Right.<|im_end|>\n<|im_start|>user\n")


def test_a_single_stop_string_is_not_read_by_its_letters() -> None:
    environment = Answering(Turn(done=True))
    environment.stops = "</answer>"
    _, policy, _ = run(environment, ["a"])
    assert policy.contexts[0].stops == ("</answer>",)


def test_metrics_have_names_and_replace_none_of_the_episode() -> None:
    counted: Any = {1: 2, "turns": 5, "stop_done": 7}
    environment = Answering(Turn(said("?"), metrics=counted), Turn(done=True))
    episode, _, _ = run(environment, ["a", "b"])
    del episode.metrics["observations_cut"]
    assert episode.metrics == {"1": 2.0, "score_turns": 5.0, "score_stop_done": 7.0}
    scored = run(Wrong("score", Score(ScoreStatus.OK, 1.0, counted)), ["a"])[0].score
    assert scored is not None
    assert scored.metrics == {"1": 2.0, "turns": 5.0, "stop_done": 7.0}


@pytest.mark.parametrize("number", [np.float32, np.float16, np.int64, torch.tensor])
def test_a_score_has_plain_numbers(number: Callable[[float], Any]) -> None:
    """numpy's and torch's cannot be written into a checkpoint."""
    score = Score.of(number(1), acc=number(1))
    scored = run(Wrong("score", score), ["a"])[0].score
    plain = asdict(Score.of(1.0, acc=1.0))
    assert json.dumps(asdict(scored or score)) == json.dumps(plain)


def test_a_single_turn_is_scored_by_a_reward_function() -> None:
    task = Task.of(Prompt(0, "2+3=", "5"))
    tokens = tokenizer(None)
    policy = Scripted(tokens, ["5"])
    episode = asyncio.run(
        run_episode(SingleTurn(arithmetic.exact), task, PlainChat(tokens), policy, LIMITS)
    )
    assert episode.score is not None
    assert episode.score.reward == 1.0
    assert request_of(episode).query == "2+3=5"
