"""What asks servers or awaits a user's function, in a thread that runs an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from env import coroutines
from env.registry import reward_function
from env.types import RewardFunction, RewardRequest
from tests.support.scripted_server import ScriptedServer


def in_a_notebook(reward: RewardFunction, requests: list[RewardRequest]) -> list[float]:
    """Return the rewards that code of a cell gets: a notebook's thread runs a loop."""

    async def cell() -> list[float]:
        return [score.reward for score in reward(requests)]

    return asyncio.run(cell())


def test_a_server_and_a_judge_are_asked_from_a_notebook(
    scripted: Callable[..., ScriptedServer], requests: list[RewardRequest]
) -> None:
    server = scripted(lambda _, body: (200, {"rewards": [float(n) for n in body["labels"]]}))
    assert in_a_notebook(reward_function(server.url), requests) == [0, 1, 2, 3, 4]
    said = {"choices": [{"message": {"role": "assistant", "content": "Score: 5"}}]}
    judge = scripted(lambda *_: (200, said)).url.removesuffix("/get_reward")
    spec = f"judge?url={judge}/v1&model=judge-7b&deadline=1"
    assert in_a_notebook(reward_function(spec), requests[:2]) == [0.5, 0.5]


def test_an_async_function_of_a_file_is_awaited_in_a_notebook(
    tmp_path: Path, requests: list[RewardRequest]
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "async def length(completions, **columns):\n    return [len(completions)] * 5\n"
    )
    assert in_a_notebook(reward_function(f"{file}:length"), requests) == [5.0] * 5


def test_what_a_coroutine_raises_reaches_the_caller() -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def cell() -> None:
        coroutines.run(fails())

    with pytest.raises(KeyError):
        asyncio.run(cell())
