"""Tools: calls are answered, wrong ones too; an outage is not an answer."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from env.episodes.tools import ToolEnv, ToolSchemaError, schema_of
from env.episodes.types import EnvironmentFailedError, Reply, StopReason, ToolCall
from tests.support.chats import calling
from tests.support.environments import LIMITS, run, spans

T = TypeVar("T")


def add(a: int, b: int = 0) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    if a == 13:
        raise ConnectionError("down")
    if a == 14:
        sys.exit("no such flag")
    if a == 15:
        raise KeyboardInterrupt
    return a // b if a == 12 else a + b


async def wait(seconds: float) -> bytes:
    """Wait.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return b"\\x00\\xff"


def decode() -> str:
    """Return a file's name that is not UTF-8."""
    return os.fsdecode(b"a name: \xff")


def nap(seconds: float) -> None:
    """Block a thread.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)


def counted(function: Callable[..., T]) -> Callable[..., T]:
    """A decorator as many are: of a plain function."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> T:
        return function(*arguments, **named)

    return call


@counted
async def triple(a: int) -> int:
    """Multiply by three.

    Args:
        a: A number.
    """
    await asyncio.sleep(0)
    return 3 * a


def give_up() -> None:
    """Wait for a server that does not answer."""
    raise TimeoutError("no answer")


def show(value: int | str) -> str:
    """Show a value.

    Args:
        value: A number or a text.
    """
    return repr(value)


ANSWERED = [
    (calling("add", '{"a": 2, "b": 3}'), "5"),
    (calling("add", '{"a": "2", "b": 3}'), 'Error: add: a is "2", where the type is integer'),
    (calling("add", '{"a": true}'), "Error: add: a is true, where the type is integer"),
    (calling("add", '{"c": 1}'), "Error: add: missing a required argument: 'a'"),
    (calling("sub", "{}"), "Error: there is no tool 'sub'; the tools are add, wait, decode"),
    (calling("add", '{"a": 14}'), "Error: SystemExit: no such flag"),
    (calling("add", '{"a": 15}'), "Error: KeyboardInterrupt"),
    (calling("decode", "{}"), "a name: ?"),
    (calling("add", '{"a": 12}'), "Error: ZeroDivisionError: integer division or modulo by zero"),
    ("<tool_call>{</tool_call>", "Error: the tool call cannot be read: not JSON"),
    (calling("wait", '{"seconds": 0}'), "(8 bytes of binary data)"),
]


@pytest.mark.parametrize(("reply", "answer"), ANSWERED)
def test_a_tool_call_is_answered(reply: str, answer: str) -> None:
    episode, _, tokens = run(ToolEnv([add, wait, decode]), [reply, "done"])
    assert episode.stop is StopReason.DONE
    assert f"<tool_response>\n{answer}" in spans(episode, tokens)[2][1]
    assert episode.metrics["tool_calls"] == 1
    assert episode.metrics["tool_errors"] == answer.startswith("Error")
    assert episode.score is None  # the run's reward function scores it


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("3", "3"),
        ('"x"', "'x'"),
        ("true", "Error: show: value is true, where the type is integer or string"),
        ("[]", "Error: show: value is [], where the type is integer or string"),
    ],
)
def test_a_parameter_may_have_several_types(value: str, answer: str) -> None:
    reply = calling("show", f'{{"value": {value}}}')
    episode, _, tokens = run(ToolEnv([show]), [reply, "done"])
    assert f"<tool_response>\n{answer}\n" in spans(episode, tokens)[2][1]


def test_several_calls_run_at_once_and_are_answered_in_order() -> None:
    barrier = asyncio.Barrier(3)

    async def meet(number: int) -> int:
        """Wait for the other calls.

        Args:
            number: What is returned.
        """
        await barrier.wait()
        return number

    reply = "".join(calling("meet", f'{{"number": {number}}}') for number in (30, 10, 20))
    episode, _, tokens = run(ToolEnv([meet]), [reply, "done"])
    observed = spans(episode, tokens)[2][1]
    assert re.findall(r"<tool_response>\n(\d+)\n", observed) == ["30", "10", "20"]


def dump(size: int) -> str:
    """Return a large text.

    Args:
        size: Characters.
    """
    return "x" * size


def test_calls_end_with_the_one_that_fails() -> None:
    ended: list[str] = []

    async def hold(name: str) -> None:
        """Wait for long.

        Args:
            name: What is written at the end.
        """
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(name)

    calls = [ToolCall("hold", {"name": "a"}, "1"), ToolCall("add", {"a": 13}, "2")]

    async def step() -> None:
        with pytest.raises(EnvironmentFailedError, match="ConnectionError: down"):
            await ToolEnv([add, hold]).step(Reply("", calls))
        await asyncio.sleep(0)
        assert ended == ["a"]

    asyncio.run(step())


def test_ten_megabytes_of_a_tool_are_cut() -> None:
    limits = replace(LIMITS, observation=40)
    reply = calling("dump", '{"size": 10000000}')
    episode, _, tokens = run(ToolEnv([dump]), [reply, "done"], limits)
    assert f"<tool_response>\n{'x' * 40}\n</tool_response>" in spans(episode, tokens)[2][1]
    assert episode.metrics["observations_cut"] == 1
    assert len(episode.messages[-2]["content"]) == 40


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (calling("add", '{"a": 13}'), "the tool add raised ConnectionError: down"),
        (calling("give_up", "{}"), "the tool give_up raised TimeoutError: no answer"),
        (calling("wait", '{"seconds": 5}'), "the tool wait took longer than 0.2 s"),
        (calling("nap", '{"seconds": 0.5}'), "the tool nap took longer than 0.2 s"),
    ],
)
def test_an_outage_of_a_tool_is_no_answer(reply: str, message: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=message):
        run(ToolEnv([add, wait, nap, give_up], timeout=0.2), [reply, "done"])


def test_an_async_function_behind_a_decorator_is_awaited() -> None:
    episode, _, tokens = run(ToolEnv([triple]), [calling("triple", '{"a": 2}'), "done"])
    assert "<tool_response>\n6\n</tool_response>" in spans(episode, tokens)[2][1]


def undocumented(a):  # type: ignore[no-untyped-def]
    return a


def numbers(count: int) -> Iterator[int]:
    """Count.

    Args:
        count: How far.
    """
    yield from range(count)


async def numbers_later(count: int) -> AsyncIterator[int]:
    """Count.

    Args:
        count: How far.
    """
    for number in range(count):
        yield number


@pytest.mark.parametrize("function", [numbers, numbers_later])
def test_a_function_that_yields_is_no_tool(function: Callable[..., Any]) -> None:
    with pytest.raises(ToolSchemaError, match="yields values, where one value is to be returned"):
        schema_of(function)


def test_a_function_without_annotations_is_no_tool() -> None:
    with pytest.raises(ToolSchemaError, match="undocumented"):
        schema_of(undocumented)
