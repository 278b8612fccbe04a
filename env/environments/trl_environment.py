"""TRL's environments as they are: an object whose public methods are tools.

`reset(**columns)` begins an episode; a text that it returns is appended to the last message.
`get_reward()`, if there is one, gives the reward at the end. What TRL calls the trainer's reward
functions may read the object (`environments`): those that `reward_funcs` names are called here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from env.episodes.environment import Environment
from env.episodes.tools import ToolEnv, called, schema_of
from env.episodes.types import (
    CANCELLING,
    EnvironmentFailedError,
    Episode,
    Task,
    ToolSpec,
    UnusableTaskError,
    WrongReturnError,
)
from env.rewards.trl_function import Asked
from env.types import Messages, Score, brief, finite

RESERVED = ("reset", "get_reward")
"""Public methods that are not tools."""
ROUTE = "environment"
"""Column that names a row's environment, if there are several."""

Maker = Callable[[], Any]
Function = Callable[..., Any]


def is_trl(made: object) -> bool:
    """Return whether an object can be an environment of TRL."""
    kind = made if isinstance(made, type) else type(made)
    step = getattr(made, "step", None)
    if issubclass(kind, Environment) or (inspect.iscoroutinefunction(step) and not step.__doc__):
        return False  # the latter is no tool of TRL, but lacks the base class
    return callable(getattr(made, "reset", None))


class TrlEnvironment(ToolEnv):
    """One episode of an environment of TRL. Its methods run in a thread, one after the other."""

    def __init__(
        self,
        makers: Mapping[str | None, Maker],
        rewards: Mapping[str, Function],
        shown: Sequence[ToolSpec] = (),
    ) -> None:
        """`makers`: by the row's environment, or by None. `shown`: tools before the episode."""
        super().__init__((), in_order=True)
        self.tools = shown
        self._makers = makers
        self._rewards = rewards
        self._instance: Any = None
        self._read = 0
        """Messages of the first context."""

    async def reset(self, task: Task) -> Messages:
        columns = dict(task.columns)
        route = None if None in self._makers else columns.pop(ROUTE, None)
        if route not in self._makers:
            names = ", ".join(map(repr, self._makers))
            raise UnusableTaskError(
                f"the column '{ROUTE}' of the row is {route!r}; the environments are {names}"
            )
        self._instance = await asyncio.to_thread(self._makers[route])
        self.offer(await asyncio.to_thread(tools_of, self._instance))
        text = await self._call("reset", columns)
        messages = list(task.messages)
        if text is not None:
            last = messages[-1]
            messages[-1] = {**last, "content": _appended(last["content"], text)}
        self._read = len(messages)
        return messages

    async def score(self, episode: Episode) -> Score | None:
        """Give the rewards to the last reply: a reward function of the run is added to them."""
        rewards: dict[str, float | None] = {}
        if callable(getattr(self._instance, "get_reward", None)):
            rewards[type(self._instance).__name__] = await self._call("get_reward", {})
        for name, function in self._rewards.items():
            rewards[name] = await self._judged(name, function, episode)
        found = {name: finite(one) for name, one in rewards.items() if one is not None}
        if wrong := [name for name, one in found.items() if one is None]:
            reason = f"the reward of {wrong[0]} is {brief(rewards[wrong[0]])}"
            raise WrongReturnError(reason, self._rewards.get(wrong[0]) or type(self._instance))
        known = {name: one for name, one in found.items() if one is not None}
        if known:
            last = max(i for i, is_action in enumerate(episode.action_mask) if is_action)
            episode.turn_rewards[last] = episode.turn_rewards.get(last, 0.0) + sum(known.values())
            episode.count({f"reward_{name}": one for name, one in known.items()})
        return None

    async def close(self) -> None:
        """Release the object in a thread: its `__del__` may take seconds to stop a container."""
        self.offer(())
        released, self._instance = [self._instance], None
        await asyncio.to_thread(released.clear)

    async def _judged(self, name: str, function: Function, episode: Episode) -> float | None:
        first, rest = episode.messages[: self._read], episode.messages[self._read :]
        begun = episode.action_mask.index(True)
        columns = [episode.task.columns]
        asked = Asked([first], [rest], [episode.tokens[begun:]], columns)
        arguments = {**asked.arguments(), "environments": [self._instance]}
        (score,) = asked.scores(await self._run(name, function, arguments))
        episode.count(score.metrics)
        return score.reward if score.ok else None

    async def _call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        name = f"{type(self._instance).__name__}.{method}"
        return await self._run(name, getattr(self._instance, method), arguments)

    async def _run(self, name: str, function: Function, arguments: Mapping[str, Any]) -> Any:
        try:
            return await called(function, arguments)
        except CANCELLING:
            raise
        except BaseException as error:
            raise EnvironmentFailedError(
                f"{name} raised {type(error).__name__}: {error}"
            ) from error


def tools_of(instance: object) -> list[Function]:
    """Return the methods that TRL offers to the policy as tools."""
    members = inspect.getmembers(type(instance), inspect.isfunction)
    names = [name for name, _ in members if not name.startswith("_") and name not in RESERVED]
    return [getattr(instance, name) for name in names]


def trl_factory(
    makers: Mapping[str | None, Maker], rewards: Mapping[str, Function]
) -> Callable[[], TrlEnvironment]:
    """Return what makes the environment of each episode. Makes one of each kind, for its tools.

    That one is released at once: an object of TRL ends what it holds in `__del__`.

    Raises ToolSchemaError if a public method cannot be a tool.
    """
    shown = {
        tool.__name__: schema_of(tool) for make in makers.values() for tool in tools_of(make())
    }
    return partial(TrlEnvironment, makers, rewards, list(shown.values()))


def _appended(content: Any, text: Any) -> Any:
    """Return the content of a message with what `reset` returned, as TRL joins them."""
    if isinstance(text, list) and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if isinstance(text, str) and isinstance(content, list):
        text = [{"type": "text", "text": text}]
    return content + text
