"""Environments for tests: files as users write them, and a dispatcher of many episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env.episodes.chat import TemplateChat
from env.episodes.environment import Environment
from env.episodes.episode import run_episode
from env.episodes.types import Episode, Limits, Reply, Task, Turn
from env.types import Score
from tests.support.chats import Scripted, tokenizer

TASK = Task(0, [{"role": "user", "content": "What is 2+3?"}], label="5")
LIMITS = Limits(turns=5, prompt=5000, reply=500, observation=500, total=20_000, seconds=30)
COUNTING = '''\
"""Asks for more until the third reply; the reward is the share of the digit 1."""

import asyncio
import random

from env.episodes.environment import Environment
from env.episodes.types import Turn
from env.types import Score


class Counting(Environment):
    def __init__(self, turns=3, slowest=0.0, own_score=True):
        self.turns, self.slowest, self.own_score = turns, slowest, own_score
        self.replies = []

    async def reset(self, task):
        self.random = random.Random(task.index)
        return task.messages

    async def step(self, reply):
        self.replies.append(reply.text)
        await asyncio.sleep(self.random.random() * self.slowest)
        if len(self.replies) == self.turns:
            return Turn(done=True, reward=0.25)
        return Turn([{"role": "user", "content": f"+{len(self.replies)}="}])

    async def score(self, episode):
        text = "".join(self.replies)
        return Score.of(text.count("1") / max(1, len(text))) if self.own_score else None
'''
HOLDING = """\
import subprocess
import sys

from env.episodes.environment import Environment


class Holding(Environment):
    def __init__(self):
        self.held = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def close(self):
        self.held.communicate()
"""
"""An environment that has a process from its beginning to its end."""


def write(directory: Path, text: str = COUNTING) -> str:
    """Write an environment's file. Returns what --environment takes."""
    path = directory / "counting.py"
    path.write_text(text)
    return f"{path}:Counting"


class Answering(Environment):
    """Answers replies by a script: a turn, an exception, or seconds to sleep first."""

    def __init__(self, *answers: Turn | BaseException | float) -> None:
        self.answers = list(answers)
        self.replies: list[Reply] = []
        self.closed = 0

    async def step(self, reply: Reply) -> Turn:
        self.replies.append(reply)
        while isinstance(answer := self.answers.pop(0), int | float):
            await asyncio.sleep(answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def score(self, episode: Episode) -> Score:
        return Score.of(1.0)

    async def close(self) -> None:
        self.closed += 1


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Wrong(Answering):
    def __init__(self, method: str, value: Any) -> None:
        super().__init__(Turn(done=True))

        async def wrong(*_: Any) -> Any:
            return value

        setattr(self, method, wrong)


def run(
    environment: Environment, replies: Sequence[str], limits: Limits = LIMITS, **more: Any
) -> tuple[Episode, Scripted, Any]:
    tokens = tokenizer(more.get("family", "qwen2_5"))
    policy = Scripted(tokens, replies)
    chat = TemplateChat(tokens)
    return asyncio.run(run_episode(environment, TASK, chat, policy, limits)), policy, tokens


def spans(episode: Episode, tokens: Any) -> list[tuple[bool, str]]:
    """The episode's text in pieces, each with whether the policy wrote it."""
    pieces: list[tuple[bool, list[int]]] = []
    for token, is_action in zip(episode.tokens, episode.action_mask, strict=True):
        if not pieces or pieces[-1][0] != is_action:
            pieces.append((is_action, []))
        pieces[-1][1].append(token)
    return [(is_action, tokens.decode(part)) for is_action, part in pieces]
