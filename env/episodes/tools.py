"""An environment of tools: Python functions that the policy calls."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from env.episodes.environment import Environment
from env.episodes.types import (
    CANCELLING,
    EnvironmentFailedError,
    Reply,
    Task,
    ToolCall,
    ToolSpec,
    Turn,
)
from env.types import Messages

TIMEOUT = 60.0
"""Seconds that a tool may take."""
LONGEST_ANSWER = 1_000_000
"""Characters of an answer. The episode's limit in tokens is far below."""
OUTAGES = (OSError, TimeoutError, EnvironmentFailedError)
"""Errors that are not the policy's fault. All other errors are answered to the policy."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}

Function = Callable[..., Any]


class ToolSchemaError(ValueError):
    """A function that cannot be a tool; the message says why."""

    def __init__(self, why: str, function: object = None) -> None:
        super().__init__(why)
        self.code_at_fault = function


class ToolEnv(Environment):
    """Runs the tool calls of each reply. A reply without a call ends the episode.

    A tool is a Python function, plain or asynchronous, with annotated parameters and a docstring
    in Google's style. Plain functions run in threads.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        *,
        system: str = "",
        timeout: float = TIMEOUT,
        in_order: bool = False,
    ) -> None:
        """`system`: a system message before the task's. `timeout`: seconds for one call.

        `in_order`: run the calls of a reply one after the other, because they share a state.
        """
        self._system = system
        self._timeout = timeout
        self._in_order = in_order
        self.offer(functions)

    def offer(self, functions: Sequence[Function]) -> None:
        """Make these functions the tools of the episode. Raises ToolSchemaError."""
        if callable(functions):
            raise ToolSchemaError("a ToolEnv takes a list of functions, also of one")
        self._functions = {function.__name__: function for function in functions}
        self.tools = [schema_of(function) for function in functions]

    async def reset(self, task: Task) -> Messages:
        if not hasattr(self, "_functions"):
            name = type(self).__name__
            raise TypeError(f"{name}.__init__ must call super().__init__ with the functions")
        if not self._system:
            return task.messages
        return [{"role": "system", "content": self._system}, *task.messages]

    async def step(self, reply: Reply) -> Turn:
        if not reply.tool_calls or reply.last:
            none = {"tool_calls": 0.0, "tool_errors": 0.0}
            return Turn(done=not reply.tool_calls, metrics=none)
        if self._in_order:
            answers = [await self._answer(call) for call in reply.tool_calls]
        else:
            answers = await self._answers(reply.tool_calls)
        messages = [
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text}
            for call, (text, _) in zip(reply.tool_calls, answers, strict=True)
        ]
        errors = sum(is_error for _, is_error in answers)
        return Turn(messages, metrics={"tool_calls": len(answers), "tool_errors": errors})

    async def _answers(self, calls: Sequence[ToolCall]) -> list[tuple[str, bool]]:
        """Answer calls at the same time. If one fails, the others end: the episode is over."""
        running = [asyncio.ensure_future(self._answer(call)) for call in calls]
        try:
            return await asyncio.gather(*running)
        finally:
            for call in running:
                call.cancel()

    async def _answer(self, call: ToolCall) -> tuple[str, bool]:
        """Return the answer to a call, and whether it is an error of the policy."""
        if fault := self._fault(call):
            return f"Error: {fault}", True
        function = self._functions[call.name]
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                result = await called(function, call.arguments)
        except OUTAGES as error:
            raised = f"raised {type(error).__name__}: {error}"
            what = f"took longer than {self._timeout:g} s" if limit.expired() else raised
            raise EnvironmentFailedError(f"the tool {call.name} {what}") from error
        except CANCELLING:
            raise
        except BaseException as error:
            return f"Error: {type(error).__name__}: {error}", True
        return _text(result), False

    def _fault(self, call: ToolCall) -> str | None:
        """Return what is wrong with a call, for the policy."""
        if call.error:
            return f"the tool call cannot be read: {call.error}"
        if call.name not in self._functions:
            return f"there is no tool {call.name!r}; the tools are {', '.join(self._functions)}"
        try:
            inspect.signature(self._functions[call.name]).bind(**call.arguments)
        except TypeError as error:
            return f"{call.name}: {error}"
        (spec,) = [one["function"] for one in self.tools if one["function"]["name"] == call.name]
        for name, about in spec["parameters"]["properties"].items():
            if name not in call.arguments:
                continue
            value, kinds = call.arguments[name], _kinds(about)
            if value is None and about.get("nullable"):
                continue
            if kinds and not any(_is(value, kind) for kind in kinds):
                shown, wanted = json.dumps(value)[:60], " or ".join(kinds)
                return f"{call.name}: {name} is {shown}, where the type is {wanted}"
        return None


def _kinds(about: Mapping[str, Any]) -> list[str]:
    """Return the types that a parameter's schema allows; [] if not all of them are known.

    A union of plain types, such as `int | str`, has a list of them.
    """
    kind = about.get("type")
    kinds: list[str] = kind if isinstance(kind, list) else [str(kind)]
    return kinds if all(kind in KINDS for kind in kinds) else []


def _is(value: Any, kind: str) -> bool:
    """Return whether a JSON value has the type: true and false are not numbers."""
    is_flag = isinstance(value, bool) and kind != "boolean"
    return not is_flag and isinstance(value, KINDS[kind])


def schema_of(function: Function) -> ToolSpec:
    """Return the JSON schema of a function, from its signature and docstring.

    Raises ToolSchemaError if an annotation or the description of a parameter is missing, or if the
    function yields.
    """
    name = getattr(function, "__name__", function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        why = f"{name}: yields values, where one value is to be returned"
        raise ToolSchemaError(why, function)
    from transformers.utils import get_json_schema  # takes a second

    try:
        schema: ToolSpec = get_json_schema(function)
    except Exception as error:  # transformers has several kinds
        is_python = inspect.isfunction(function) or inspect.ismethod(function)
        lacking = " and ".join(_lacking(function)) if is_python else ""
        why = f"{name} has {lacking}" if lacking else f"{name}: {error}"
        raise ToolSchemaError(why, function) from error
    return schema


def _lacking(function: Function) -> Iterator[str]:
    """Yield what a function lacks to be a tool."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    doc = (inspect.getdoc(function) or "").strip()
    told = parse_google_format_docstring(doc)[1] if doc else {}
    own = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    if not doc:
        yield "no docstring"
    if bare := [one.name for one in own if one.annotation is one.empty]:
        yield f"no type hint for {', '.join(bare)}"
    if untold := [one.name for one in own if one.name not in told]:
        yield f"no description of {', '.join(untold)} below `Args:` of the docstring"


async def called(function: Function, arguments: Mapping[str, Any]) -> Any:
    """Return a function's result. A plain function runs in a thread.

    It may return what is to be awaited, as an `async` function behind a decorator does.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await asyncio.to_thread(function, **arguments)
    return await result if inspect.isawaitable(result) else result


def _text(result: Any) -> str:
    """Return a tool's result as text: JSON unless it is a text."""
    if isinstance(result, bytes | bytearray | memoryview):
        return f"({len(result)} bytes of binary data)"
    if not isinstance(result, str):
        try:
            result = json.dumps(result, ensure_ascii=False, default=str)
        except (ValueError, TypeError, RecursionError) as error:
            return f"Error: the result cannot be shown: {error}"
    text: str = result[:LONGEST_ANSWER]
    return text
