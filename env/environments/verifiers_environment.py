"""Runs environments of the package `verifiers`: its rollout and its rubric, with our engine.

The client that the environment knows takes and gives messages; behind it are tokens. A prompt must
continue the chat so far: its new messages become tokens, and no earlier message does so again.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import verifiers
from verifiers.clients import OpenAIChatCompletionsClient
from verifiers.types import Response, ResponseMessage, ToolCall, Usage

from env.episodes.chat import Chat
from env.episodes.engine_wait import EngineWait
from env.episodes.episode import contained, release
from env.episodes.messages import shortened
from env.episodes.types import (
    CANCELLING,
    Context,
    EnvironmentFailedError,
    Episode,
    Generate,
    Generated,
    Limits,
    ReplyStop,
    StopReason,
    Task,
    ToolSpec,
    Turn,
)
from env.images.rows import references
from env.types import Score, ScoreStatus, brief, finite

MODEL = "policy"


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the environment of a package. Raises what the package raises; ValueError for groups.

    An environment takes the process's signals for itself; they stay as they were.
    """
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        environment = verifiers.load_environment(name, **arguments)
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
    if environment.requires_group_rollouts:
        raise ValueError("its rubric compares the rollouts of a group; each is scored alone here")
    environment.init_state = _shown_to_client(environment.init_state)
    return environment


def _shown_to_client(init_state: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return `init_state` that also gives the state to its client.

    A rollout that raises, or is ended, returns no state, and its rubric may hold something for it.
    """

    async def shown(*arguments: Any, **named: Any) -> Any:
        state = await init_state(*arguments, **named)
        if isinstance(client := state.get("client"), PolicyClient):
            client.state = state
        return state

    return shown


class PolicyClient(OpenAIChatCompletionsClient):
    """What an environment knows as its model: one episode of the policy."""

    def __init__(self, episode: Episode, chat: Chat, limits: Limits, generate: Generate) -> None:
        super().__init__(None)
        self.episode, self._chat, self._limits = episode, chat, limits
        self._generate = generate
        self._tools: Sequence[ToolSpec] = ()
        self._start = 0
        self.state: Any = None
        """verifiers' state of the episode, once the rollout has made it."""
        self.failure: EnvironmentFailedError | None = None
        self.last: Generated | None = None
        self.wait = EngineWait()

    async def get_native_response(
        self,
        prompt: list[dict[str, Any]],
        model: str,
        sampling_args: Mapping[str, Any],
        tools: Sequence[ToolSpec] | None = None,
        **kwargs: Any,
    ) -> Generated:
        self.state = kwargs.get("state", self.state)
        try:
            self._see(deepcopy(prompt), tools or ())
        except EnvironmentFailedError as error:
            self.failure = error
            raise
        except Exception as error:  # templates raise errors of their own
            self.failure = EnvironmentFailedError(f"the chat template refuses: {error}")
            raise self.failure from error
        room = self._limits.total - len(self.episode.tokens)
        if self.episode.stop is None and room <= 0:
            self.episode.stop = StopReason.TOTAL_LENGTH
        if self.episode.stop is not None:
            raise verifiers.OverlongPromptError(self.episode.stop)  # ends the rollout, no error
        stops = sampling_args.get("stop") or ()
        wanted = sampling_args.get("max_completion_tokens") or sampling_args.get("max_tokens")
        limit = min(wanted or room, room, self._limits.reply)
        stops = (stops,) if isinstance(stops, str) else tuple(stops)
        with self.wait.call():
            written = await self._generate(Context(tuple(self.episode.tokens), limit, stops))
        self.episode.act(written)
        self.last = written
        return written

    def _see(self, prompt: list[dict[str, Any]], tools: Sequence[ToolSpec]) -> None:
        """Append what is new in a prompt to the tokens, or set the reason why the episode stops."""
        episode, seen = self.episode, self.episode.messages
        if next(references(prompt), None) is not None:
            raise EnvironmentFailedError("the messages have images, and only texts are taken here")
        if self.last is None:
            self._tools = tools
            tokens = self._chat.begin(prompt, tools)
            if not tokens:
                raise EnvironmentFailedError("the first prompt has no token")
            episode.observe(tokens[-self._limits.prompt :])
            episode.messages += prompt
            self._start = len(episode.tokens)
            episode.prompt = self._chat.decode(episode.tokens)
            return
        if prompt[: len(seen)] != seen or tools != self._tools:
            what = "tools" if prompt[: len(seen)] == seen else "earlier messages"
            raise EnvironmentFailedError(
                f"the environment changes {what} of the chat after reply {episode.turns}: the "
                "policy's tokens would not be those that it wrote"
            )
        if episode.turns >= self._limits.turns:
            episode.stop = StopReason.TURNS
            return
        new = prompt[len(seen) :]
        messages, _, is_cut = shortened(Turn(new), self._chat, self._limits.observation)
        episode.count({"observations_cut": float(is_cut)})
        tokens = self._chat.follow(messages, ended=self.last.ended)
        if len(episode.tokens) >= self._limits.total:
            episode.stop = StopReason.TOTAL_LENGTH
        elif len(episode.tokens) + len(tokens) >= self._limits.total:
            episode.stop = StopReason.OBSERVATION_LENGTH
        else:
            episode.observe(tokens)
            episode.messages += new

    async def raise_from_native_response(self, response: Generated) -> None:
        """Raise nothing: an empty reply is the policy's, and no failure."""

    async def from_native_response(self, response: Generated) -> Response:
        text = self._chat.decode(response.tokens, follows=True)
        calls = self._chat.tool_calls(response.tokens)
        before, marker, _ = text.partition("<tool_call>")
        is_cut = response.stop is ReplyStop.LENGTH
        given = len(self.episode.tokens) - len(response.tokens)
        message = ResponseMessage(
            content=text if not calls else before.strip() if marker else "",
            tool_calls=[
                # Arguments that are not JSON: the environment answers the policy with an error.
                ToolCall(id=c.id, name=c.name, arguments=c.error or json.dumps(c.arguments))
                for c in calls
            ]
            or None,
            finish_reason="length" if is_cut else "tool_calls" if calls else "stop",
            is_truncated=is_cut,
        )
        self.episode.messages += (await self.to_native_prompt([message]))[0]
        usage = Usage(
            prompt_tokens=given,
            reasoning_tokens=0,
            completion_tokens=len(response.tokens),
            total_tokens=len(self.episode.tokens),
        )
        return Response(id="", created=0, model=MODEL, usage=usage, message=message)

    async def close(self) -> None:
        """Close nothing."""

    def finish(self) -> None:
        """Write the text of the episode, and why it has ended if no limit is reached."""
        self.episode.text = self._chat.decode(self.episode.tokens[self._start :], follows=True)
        is_cut = self.last is not None and self.last.stop is ReplyStop.LENGTH
        self.episode.stop = self.episode.stop or (
            StopReason.TOTAL_LENGTH if is_cut else StopReason.DONE
        )


@dataclass(frozen=True, slots=True)
class VerifiersAttempt:
    """An attempt at an episode by an environment of verifiers, which all episodes share."""

    environment: Any
    chat: Chat
    limits: Limits

    async def __call__(self, task: Task, generate: Generate) -> Episode:
        client = PolicyClient(Episode(task=task), self.chat, self.limits, generate)
        rollout = self.environment.rollout(
            row_of(task), client, MODEL, dict(self.environment.sampling_args)
        )
        try:
            try:
                state = await self._within(rollout, client)
            except TimeoutError:
                state = client.state
                if client.last is None:
                    raise EnvironmentFailedError(
                        f"the environment took {self.limits.seconds:g} s before a reply"
                    ) from None
                self.environment.mark_timed_out(state)
            client.state = state
            if error := client.failure or state.get("error"):
                cause = error.__cause__
                shown = f"{type(error).__name__}: {error}" + (f" ({cause!r})" if cause else "")
                raise client.failure or EnvironmentFailedError(f"the rollout ended with {shown}")
            if state.get("timed_out"):
                client.episode.stop = StopReason.WALL_TIME
            client.finish()
            await self._score(client, state)
        except (EnvironmentFailedError, *CANCELLING):
            raise
        except BaseException as error:
            name = type(self.environment).__name__
            raise EnvironmentFailedError(f"{name}: {type(error).__name__}: {error}") from error
        finally:  # the rollout has called the environment's own clean-up
            await self._clean_up(client.state)
        return client.episode

    async def _score(self, client: PolicyClient, state: Any) -> None:
        """Take the rubric's score."""
        if self.environment.score_rollouts:
            async with asyncio.timeout(self.limits.seconds):
                await self.environment.rubric.score_rollout(state)
            client.episode.score = _score_of(state)

    async def _clean_up(self, state: Any) -> None:
        """Have the rubric release what it holds for an episode, such as a sandbox."""
        rubric = self.environment.rubric
        if state is not None:
            await release(f"{type(rubric).__name__}.cleanup", lambda: rubric.cleanup(state))

    async def _within(self, rollout: Awaitable[Any], client: PolicyClient) -> Any:
        """Return the state of a finished rollout. Raises TimeoutError if it takes too long."""
        execution = asyncio.ensure_future(contained(lambda: rollout))
        begun = time.monotonic()
        try:
            while not execution.done():
                left = self.limits.seconds - (time.monotonic() - begun - client.wait.seconds())
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({execution}, timeout=left)
            return execution.result()
        finally:
            execution.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({execution}, timeout=self.limits.seconds)


def _score_of(state: Any) -> Score:
    told = {name: finite(one) for name, one in (state["metrics"] or {}).items()}
    metrics = {name: one for name, one in told.items() if one is not None}
    if (reward := finite(state["reward"])) is None:
        return Score.failed(f"the rubric's reward is {brief(state['reward'])}")
    return Score(ScoreStatus.OK, reward, metrics)


def row_of(task: Task) -> dict[str, Any]:
    """Return a task as a row of a data set of verifiers."""
    label = task.columns.get("answer", "") if task.label is None else task.label
    prompt = [dict(message) for message in task.messages]
    return {**task.columns, "prompt": prompt, "example_id": task.index, "answer": label}


def tools_of(environment: Any) -> list[ToolSpec]:
    """Return the tools of an environment as chat templates take them."""
    return [
        {"type": "function", "function": tool.model_dump(exclude_none=True)}
        for tool in environment.tool_defs or ()
    ]
