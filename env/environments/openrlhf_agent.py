"""Runs OpenRLHF's agent files as they are: `AgentExecutor.execute` with an engine of ours.

The agent renders its own text, so that its tokens, ranges of actions and rewards are taken as it
returns them. The versions of tokens come from the replies that the engine wrote for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from env.environments.environment_file_check import AGENT_CLASS
from env.environments.openrlhf_stand_in import importable
from env.episodes.codec import TextCodec
from env.episodes.engine_wait import EngineWait
from env.episodes.episode import contained
from env.episodes.types import (
    Context,
    EnvironmentFailedError,
    Episode,
    Generate,
    Generated,
    Limits,
    ReplyStop,
    StopReason,
    Task,
)
from env.rewards.python_file import RewardFileError, load_module
from env.types import Score, brief, finite
from env.user_code import Raised


def load_agent(path: Path) -> Any:
    """Return the AgentExecutor of a file. Raises RewardFileError."""
    with importable():
        module = load_module(path)
        made = getattr(module, AGENT_CLASS, None)
        if made is None:
            raise RewardFileError(f"{path}: defines no class {AGENT_CLASS}")
        try:
            executor = made()
        except (Exception, SystemExit) as error:
            raised = Raised.of(error, made)
            sentence = f"{path}: {AGENT_CLASS}() raised {raised}"
            raise RewardFileError(sentence, raised) from error
    if not callable(getattr(executor, "execute", None)):
        raise RewardFileError(f"{path}: {AGENT_CLASS} has no method execute")
    return executor


@dataclass
class SamplingParams:
    """The fields of vLLM's SamplingParams that agents set. Others are kept and change nothing."""

    max_tokens: int
    temperature: float
    top_p: float
    logprobs: int | None = 1
    stop: str | Sequence[str] | None = None


@dataclass(slots=True)
class _Engine:
    """What an agent knows as its vLLM engine."""

    codec: TextCodec
    generate_tokens: Generate
    limits: Limits
    replies: list[Generated | None] = field(default_factory=list)
    """In the order of the calls; None for a call that is under way or has failed."""
    wait: EngineWait = field(default_factory=EngineWait)

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any, **_: Any
    ) -> SimpleNamespace:
        tokens = tuple(int(token) for token in prompt_token_ids)
        room = self.limits.total - len(tokens)
        wanted = getattr(sampling_params, "max_tokens", None) or room
        stops = getattr(sampling_params, "stop", None) or ()
        limit = min(wanted, room, self.limits.reply)
        if limit < 1:
            raise EnvironmentFailedError(
                f"the agent wants a reply after {len(tokens)} tokens, and an episode has at most "
                f"{self.limits.total}"
            )
        if not tokens:
            raise EnvironmentFailedError("the agent wants a reply to a text without a token")
        context = Context(tokens, limit, (stops,) if isinstance(stops, str) else tuple(stops))
        place = len(self.replies)
        self.replies.append(None)
        with self.wait.call():
            written = await self.generate_tokens(context)
        self.replies[place] = written
        log_probs = [
            {token: SimpleNamespace(logprob=log_prob)}
            for token, log_prob in zip(written.tokens, written.log_probs, strict=True)
        ]
        output = SimpleNamespace(
            token_ids=list(written.tokens),
            text=self.codec.decode(written.tokens, follows=True),
            finish_reason="length" if written.stop is ReplyStop.LENGTH else "stop",
            logprobs=log_probs,
        )
        return SimpleNamespace(outputs=[output], prompt_token_ids=list(tokens))


@dataclass(frozen=True, slots=True)
class AgentAttempt:
    """An attempt at an episode by an agent's executor."""

    executor: Any
    tokenizer: Any
    limits: Limits
    sampling: SamplingParams
    ends: Collection[int] = ()
    """The model's end tokens beside the tokeniser's own."""

    @property
    def _codec(self) -> TextCodec:
        return TextCodec(self.tokenizer, self.ends)

    async def __call__(self, task: Task, generate: Generate) -> Episode:
        engine = _Engine(self._codec, generate, self.limits)
        params = SamplingParams(**vars(self.sampling))
        try:
            execute = partial(
                self.executor.execute,
                prompt=task.text,
                label=task.label,
                sampling_params=params,
                max_length=self.limits.total,
                hf_tokenizer=self.tokenizer,
                llm_engine=engine,
            )
            found = await self._within(asyncio.ensure_future(contained(execute)), engine)
            return self._episode(task, found, [one for one in engine.replies if one is not None])
        except EnvironmentFailedError:
            raise
        except Exception as error:
            name = type(self.executor).__name__
            raise EnvironmentFailedError(
                f"{name}.execute raised {type(error).__name__}: {error}"
            ) from error

    async def _within(self, execution: asyncio.Future[Any], engine: _Engine) -> Any:
        """Return the result of an execution. Raises EnvironmentFailedError if it takes too long."""
        begun = time.monotonic()
        try:
            while not execution.done():
                left = self.limits.seconds - (time.monotonic() - begun - engine.wait.seconds())
                if left <= 0:
                    raise EnvironmentFailedError(
                        f"{type(self.executor).__name__}.execute took {self.limits.seconds:g} s "
                        "beside the engine's time"
                    )
                await asyncio.wait({execution}, timeout=left)
            return execution.result()
        finally:
            execution.cancel()

    def _episode(
        self, task: Task, found: Mapping[str, Any], replies: Sequence[Generated]
    ) -> Episode:
        """Return what `execute` returned as an episode, at most as long as the limit."""
        tokens = [int(token) for token in found["observation_tokens"]]
        ranges = [(int(start), int(end)) for start, end in found["action_ranges"]]
        _check_ranges(ranges, replies)
        length = len(tokens)  # an agent may have cut them, and not the ranges
        ranges = [(min(start, length), min(end, length)) for start, end in ranges]
        log_probs = found.get("rollout_log_probs") or _log_probs(length, ranges, replies)
        if len(log_probs) != length:
            raise ValueError(
                f"rollout_log_probs has {len(log_probs)} numbers, and observation_tokens has "
                f"{length} tokens"
            )
        episode = Episode(task=task, turns=len(ranges))
        episode.observe(tokens)
        for (start, end), reply in zip(ranges, replies, strict=True):
            chosen = tokens[start:end][: len(reply.tokens)]
            if chosen != list(reply.tokens)[: len(chosen)]:
                raise ValueError(
                    f"action_ranges ({start}, {end}) has other tokens than the engine wrote. Use "
                    "the token_ids of its answer, and make no tokens from its text"
                )
            size = end - start
            episode.action_mask[start:end] = [True] * size
            episode.log_probs[start:end] = [float(one) for one in log_probs[start:end]]
            versions = [*reply.versions, *[min(reply.versions)] * size]
            episode.versions[start:end] = versions[:size]
        first = ranges[0][0] if ranges else length
        longest = self.limits.total
        for own in (episode.tokens, episode.action_mask, episode.log_probs, episode.versions):
            del own[longest:]
        episode.prompt = task.text
        episode.text = self._codec.decode(episode.tokens[first:], follows=True)
        episode.stop = StopReason.TOTAL_LENGTH if found.get("truncated") else StopReason.DONE
        episode.score = _score(found)
        return episode


def _check_ranges(ranges: Sequence[tuple[int, int]], replies: Sequence[Generated]) -> None:
    """Raise ValueError unless each reply of the engine has a range of its own, in their order."""
    if len(ranges) != len(replies):
        raise ValueError(
            f"action_ranges has {len(ranges)} ranges, and the engine wrote {len(replies)} replies: "
            "each reply needs its range, in the order of the calls of generate, also if the agent "
            "asks again or takes one of several"
        )
    last = 0
    for start, end in ranges:
        if not last <= start <= end:
            raise ValueError(
                f"action_ranges has ({start}, {end}), where a range from {last} on is wanted: they "
                "follow one another, and none ends before it begins"
            )
        last = end


def _log_probs(
    length: int, ranges: Sequence[tuple[int, int]], replies: Sequence[Generated]
) -> list[float]:
    log_probs = [0.0] * length
    for (start, end), reply in zip(ranges, replies, strict=True):
        if end - start > len(reply.tokens):
            raise ValueError(
                f"action_ranges ({start}, {end}) has {end - start} tokens, and the engine wrote "
                f"{len(reply.tokens)}: give rollout_log_probs for the others"
            )
        log_probs[start:end] = list(reply.log_probs)[: end - start]
    return log_probs


def _score(found: Mapping[str, Any]) -> Score | None:
    """Return the agent's score; None if it gives no reward."""
    if found.get("reward") is None:
        return None
    reward = finite(found["reward"])
    if reward is None:
        return Score.failed(f"the agent's reward is {brief(found['reward'])}")
    logs = {str(name): finite(value) for name, value in (found.get("extra_logs") or {}).items()}
    metrics = {name: value for name, value in logs.items() if value is not None}
    accuracy = finite(found.get("scores"))
    return Score.of(reward, **metrics | ({} if accuracy is None else {"acc": accuracy}))
