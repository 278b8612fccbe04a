"""One episode: the policy and an environment take turns; its tokens, with a mask of the actions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from env.episodes.chat import Chat
from env.episodes.environment import Environment
from env.episodes.messages import (
    CHARACTERS_OF_A_TOKEN,
    NoMessagesError,
    checked,
    not_awaited,
    shortened,
    without_beginning,
)
from env.episodes.types import (
    CANCELLING,
    Context,
    EnvironmentFailedError,
    Episode,
    Generate,
    Generated,
    Limits,
    Reply,
    StopReason,
    Task,
    Turn,
    UnusableTaskError,
    WrongReturnError,
)
from env.images.load import ImageError
from env.images.types import Image
from env.types import Messages, Score, brief, finite
from env.user_code import Raised

T = TypeVar("T")
CLOSE_SECONDS = 30.0
"""Longest wait for an environment to close: its episode has all that it needs by then."""

logger = logging.getLogger(__name__)


class TimeUsedError(Exception):
    """The environment has used the time of the episode."""


async def run_episode(
    environment: Environment, task: Task, chat: Chat, generate: Generate, limits: Limits
) -> Episode:
    """Return the finished episode of a task, with the environment's score.

    Raises EnvironmentFailedError if the environment raises, returns a wrong type, uses up its time
    before the first reply, or goes on although it is cancelled.
    """
    overdue: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    run = _Run(environment, chat, generate, limits, Episode(task=task), limits.seconds, overdue)
    # One task has all calls of the environment: what one of them enters, another may leave.
    running = asyncio.ensure_future(_finished(run))
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    either: set[asyncio.Future[Any]] = {running, overdue}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        if run.is_scored:
            logger.warning("%s.", overdue.result())
            return run.episode
        raise EnvironmentFailedError(overdue.result())
    finally:
        running.cancel()


async def _finished(run: _Run) -> Episode:
    """Return the finished episode, when its environment is closed."""
    try:
        await run.begin()
        start = len(run.episode.tokens)
        while run.episode.stop is None:
            await run.turn()
        run.episode.text = run.chat.decode(run.episode.tokens[start:], follows=True)
        await run.score()
        run.is_scored = True
    except TimeUsedError as error:
        raise EnvironmentFailedError(str(error)) from error
    finally:
        with run.watched("close", CLOSE_SECONDS):
            await close(run.environment)
    return run.episode


@dataclass(slots=True)
class _Run:
    environment: Environment
    chat: Chat
    generate: Generate
    limits: Limits
    episode: Episode
    seconds: float
    """Time that the environment has left."""
    overdue: asyncio.Future[str]
    """Its result says which call goes on although it is cancelled."""
    is_scored: bool = False

    async def begin(self) -> None:
        task, episode = self.episode.task, self.episode
        returned = await self._within("reset", lambda: self.environment.reset(task))
        try:
            found = checked(returned)
        except NoMessagesError as error:
            raise self._failure("reset", f"returned {error}") from None
        messages = without_beginning(found, CHARACTERS_OF_A_TOKEN * self.limits.prompt)
        images = await self._images(messages)
        with self._rendering():
            tokens = self.chat.begin(messages, self.environment.tools, images)
            placed = self.chat.placed(tokens, images)
        if images and len(tokens) > self.limits.prompt:
            raise UnusableTaskError(
                f"the prompt has {len(tokens)} tokens with its {len(images)} images, and "
                f"--prompt_max_len is {self.limits.prompt}. Images are not cut: give a longer "
                "limit, or a smaller --image_max_pixels"
            )
        if not tokens:
            reason = f"{self._name}.reset: the first context has no token"
            raise UnusableTaskError(reason, type(self.environment).reset)
        episode.observe(tokens[-self.limits.prompt :], placed)
        episode.messages += messages
        episode.prompt = self.chat.decode(episode.tokens)

    async def turn(self) -> None:
        """Let the policy reply and the environment answer."""
        episode, limits = self.episode, self.limits
        room = limits.total - len(episode.tokens)
        if room <= 0:
            episode.stop = StopReason.TOTAL_LENGTH
            return
        reply_limit, stops = min(limits.reply, room), self._stops()
        context = Context(tuple(episode.tokens), reply_limit, stops, tuple(episode.images))
        written = await self.generate(context)
        episode.act(written)
        reply = self._reply(written)
        episode.messages.append({"role": "assistant", "content": reply.text})
        try:
            turn = await self._within("step", lambda: self.environment.step(reply))
        except TimeUsedError:
            episode.stop = StopReason.WALL_TIME
            return
        await self._take(turn, written)

    def _stops(self) -> tuple[str, ...]:
        """Return the environment's stop strings. A single text is one: ("</a>") is not a tuple."""
        try:
            stops = self.environment.stops
            found = (stops,) if isinstance(stops, str) else tuple(stops or ())
        except EnvironmentFailedError:
            raise
        except BaseException as error:
            raise self._failure("stops", f"raised {type(error).__name__}: {error}") from error
        if wrong := [one for one in found if not (isinstance(one, str) and one)]:
            raise UnusableTaskError(
                f"{self._name}.stops has {brief(wrong[0])}, where a text of 1 character or more "
                "is wanted",
                type(self.environment),
            )
        return found

    def _reply(self, written: Generated) -> Reply:
        return Reply(
            text=self.chat.decode(written.tokens, follows=True),
            tool_calls=self.chat.tool_calls(written.tokens),
            stop=written.stop,
            last=self.episode.turns >= self.limits.turns,
        )

    async def _take(self, turn: Turn, written: Generated) -> None:
        """Append the environment's answer, or end the episode."""
        episode = self.episode
        if not isinstance(turn, Turn):
            raise self._failure("step", f"returned {brief(turn)}, where a Turn is wanted")
        try:
            self._credit(turn)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._failure("step", f"returned {brief(turn)}: {error}") from error
        if turn.done:
            episode.stop = StopReason.DONE
        elif episode.turns >= self.limits.turns:
            episode.stop = StopReason.TURNS
        elif len(episode.tokens) >= self.limits.total:
            episode.stop = StopReason.TOTAL_LENGTH
        else:
            await self._observe(turn, written)

    def _credit(self, turn: Turn) -> None:
        """Take the turn's reward and metrics. Raises ValueError for a reward that is not finite."""
        if turn.reward is not None:
            if (reward := finite(turn.reward)) is None:
                raise ValueError(f"the reward is {brief(turn.reward)}")
            self.episode.turn_rewards[len(self.episode.tokens) - 1] = reward
        self.episode.count(turn.metrics)

    async def _observe(self, turn: Turn, written: Generated) -> None:
        episode = self.episode
        try:
            messages, text, is_cut = shortened(turn, self.chat, self.limits.observation)
        except NoMessagesError as error:
            raise self._failure("step", f"returned {error}") from None
        episode.count({"observations_cut": float(is_cut)})
        tokens = self.chat.encode(text) if text else []
        images = await self._images(messages)
        with self._rendering():
            if messages or not text:
                # A text behind the end token continues the message, which ends behind the text.
                ended = written.ended and not text
                tokens += self.chat.follow(messages, ended=ended, images=images)
            placed = self.chat.placed(tokens, images)
        if len(episode.tokens) + len(tokens) >= self.limits.total:
            episode.stop = StopReason.OBSERVATION_LENGTH
            return
        episode.observe(tokens, placed)
        episode.messages += messages

    async def score(self) -> None:
        self.seconds = self.limits.seconds  # the policy's part is over, and a verifier may be slow
        tokens = tuple(self.episode.tokens)
        score = await self._within("score", lambda: self.environment.score(self.episode))
        if not isinstance(score, Score | None):
            raise self._failure("score", f"returned {brief(score)}, where a Score is wanted")
        if tuple(self.episode.tokens) != tokens:
            raise self._failure("score", "has changed the episode's tokens")
        if wrong := [at for at in self.episode.turn_rewards if at not in range(len(tokens))]:
            count = len(tokens)
            raise self._failure("score", f"gives a reward to token {wrong[0]} of {count} tokens")
        try:
            self.episode.score = score and _plain(score)
        except (TypeError, ValueError, AttributeError) as error:
            raise self._failure("score", f"returned {brief(score)}: {error}") from error

    async def _images(self, messages: Messages) -> tuple[Image, ...]:
        """Return the images of messages.

        Raises UnusableTaskError for an image that is missing or damaged, EnvironmentFailedError if
        the disk fails.
        """
        with self._rendering():
            try:
                return await self.chat.images(messages)
            except ImageError as error:
                raise UnusableTaskError(str(error)) from None

    async def _within(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call the environment, and await the result in the time that it has left."""
        begun = time.monotonic()
        left = max(0.0, self.seconds)
        limit = asyncio.timeout(left)
        try:
            with self.watched(method, left):
                async with limit:
                    awaited = call()
                    if not inspect.isawaitable(awaited):
                        raise self._failure(method, f"is not async: write `async def {method}`")
                    returned = await awaited
                    if inspect.iscoroutine(returned):
                        raise self._failure(method, f"returned {not_awaited(returned)}")
                    return returned
        except (EnvironmentFailedError, *CANCELLING):
            raise
        except BaseException as error:
            if limit.expired():
                raise TimeUsedError(
                    f"{self._name}.{method} and the calls before it took {self.limits.seconds:g} s"
                ) from None
            raise self._failure(method, f"raised {type(error).__name__}: {error}") from error
        finally:
            self.seconds -= time.monotonic() - begun

    @contextmanager
    def watched(self, method: str, seconds: float) -> Iterator[None]:
        """Tell `overdue` of a call that goes on after its time, and CLOSE_SECONDS more.

        A bare `except:` around a loop catches the cancellation, too.
        """

        def tell() -> None:
            if not self.overdue.done():
                self.overdue.set_result(
                    f"{self._name}.{method} goes on {CLOSE_SECONDS:g} s after it was cancelled: "
                    "code of it catches CancelledError"
                )

        def expire() -> None:
            timers.append(loop.call_later(CLOSE_SECONDS, tell))

        loop = asyncio.get_running_loop()
        timers = [loop.call_later(seconds, expire)]
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    @contextmanager
    def _rendering(self) -> Iterator[None]:
        """Name the environment whose messages the chat template refuses."""
        try:
            yield
        except EnvironmentFailedError:
            raise
        except OSError as error:
            raise EnvironmentFailedError(f"an image cannot be read: {error}") from error
        except Exception as error:  # templates raise errors of their own
            raise EnvironmentFailedError(
                f"the chat template refuses the messages of {self._name}: {error}"
            ) from error

    @property
    def _name(self) -> str:
        return type(self.environment).__name__

    def _failure(self, method: str, what: str) -> EnvironmentFailedError:
        own = getattr(type(self.environment), method, None)
        return WrongReturnError(f"{self._name}.{method} {what}", own)


def _plain(score: Score) -> Score:
    """Return `score.plain()`. Raises ValueError for a reward that is not finite."""
    plain = score.plain()
    if plain.ok and not math.isfinite(plain.reward):
        raise ValueError(f"the reward is {plain.reward}")
    return plain


async def close(environment: Environment) -> None:
    """Close an environment. A close that fails or hangs costs nothing but a line in the log."""
    await release(f"{type(environment).__name__}.close", environment.close)


async def release(name: str, call: Callable[[], Awaitable[None]]) -> None:
    """Have an environment's method release what an episode held; see `close`."""
    limit = asyncio.timeout(CLOSE_SECONDS)
    try:
        async with limit:
            await call()
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        if limit.expired():
            logger.warning("%s took longer than %g s.", name, CLOSE_SECONDS)
        else:
            logger.warning("%s failed: %s.", name, Raised.of(error))


async def contained(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns in a task of its own.

    Raises RuntimeError for what would end the whole process, such as SystemExit.
    """
    try:
        return await call()
    except (Exception, *CANCELLING):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def is_cancelled() -> bool:
    """Return whether the running task itself is cancelled, and not a call that it awaits."""
    own = asyncio.current_task()
    return own is None or own.cancelling() > 0
