"""Rewards over HTTP: chunks over the servers in turn, patient with outages, honest about failures.

Each chunk tries one server after the other until one answers or its deadline has passed. What
cannot be scored is a failed Score; a server that never answers is RewardUnreachable; never a zero.
A refusal is an outage, too, unless no server has answered in this run and all refuse.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx
from tenacity import RetryCallState

from env import coroutines
from env.http.known_servers import KNOWN
from env.http.post import (
    OutageError,
    RejectedError,
    check_url,
    patience,
    post_json,
    service_client,
    telling,
)
from env.http.protocol import AnswerError, read_answer, write_request
from env.types import RewardRequest, Score

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_SENTENCES = 30.0
SECONDS_OF_REST = 15.0
"""How long a server that failed is passed over while others answer."""


class RewardUnreachable(RuntimeError):  # noqa: N818 - it names a state, as the exit code does
    """No usable answer before the deadline."""


class RewardRejected(RuntimeError):  # noqa: N818
    """All servers refuse, and none has ever answered: asking again would not help."""


class Tell(Protocol):
    """Takes a sentence, and whether the caller waits for the server now."""

    def __call__(self, sentence: str, *, waits: bool) -> None: ...


def warn(sentence: str, *, waits: bool) -> None:
    logger.log(logging.WARNING if waits else logging.INFO, sentence)


@dataclass
class RemoteReward:
    """A RewardFunction that asks `urls`; each is a full address such as http://head:5000/get_reward.

    A chunk is at most `chunk_size` completions; `concurrency` of them are under way at a time.
    `timeout` is for one try, and doubles after each that was too short; `deadline` is for all tries
    of one chunk; both in seconds. `tell` takes a sentence when a wait begins, and when it is over.
    Raises ValueError for addresses that are none, RewardUnreachable and RewardRejected when called.
    """

    urls: Sequence[str]
    timeout: float = 30.0
    deadline: float = 600.0
    chunk_size: int = 32
    concurrency: int = 8
    tell: Tell = warn
    _spoke_at: float = field(default=float("-inf"), init=False, repr=False)
    _waits: bool = field(default=False, init=False, repr=False)
    _rests_until: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _refusing: set[str] = field(default_factory=set, init=False, repr=False)
    """URLs whose last answer was a refusal."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise ValueError("no reward URL given")
        for url in self.urls:
            check_url(url, "http://head:5000/get_reward")

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        return coroutines.run(self._score(requests))

    async def _score(self, requests: Sequence[RewardRequest]) -> list[Score]:
        # Every server gets its share even of a small batch.
        size = max(1, min(self.chunk_size, -(-len(requests) // len(self.urls))))
        chunks = [requests[start : start + size] for start in range(0, len(requests), size)]
        turns = asyncio.Semaphore(self.concurrency)

        async def take_turn(number: int, chunk: Sequence[RewardRequest]) -> list[Score]:
            async with turns:
                return await self._score_chunk(client, number, chunk)

        async with service_client() as client:
            scored = await asyncio.gather(*(take_turn(*chunk) for chunk in enumerate(chunks)))
        return [score for scores in scored for score in scores]

    async def _score_chunk(
        self, client: httpx.AsyncClient, number: int, chunk: Sequence[RewardRequest]
    ) -> list[Score]:
        begun, tries, longest = time.monotonic(), 0, self.timeout
        last: OutageError | None = None
        try:
            async for attempt in patience(self.deadline, self._say):
                with attempt:
                    url = self._choose(number + tries)
                    tries += 1
                    left = begun + self.deadline - time.monotonic()
                    try:
                        scores = await self._try(client, url, chunk, min(longest, left))
                    except OutageError as fault:
                        last = telling(last, fault, is_cut=left < longest)
                        longest *= 2 if fault.slow else 1
                        raise
        except OutageError as fault:
            raise RewardUnreachable(
                f"no usable answer for {time.monotonic() - begun:.0f} s "
                f"({tries} tries, deadline {self.deadline:.0f} s); last: {last}"
            ) from fault
        if tries > 1:
            self._say_over(time.monotonic() - begun)
        return scores

    async def _try(
        self, client: httpx.AsyncClient, url: str, chunk: Sequence[RewardRequest], timeout: float
    ) -> list[Score]:
        try:
            scores = await _ask(client, url, chunk, timeout)
        except (OutageError, RejectedError) as fault:
            self._rests_until[url] = time.monotonic() + SECONDS_OF_REST
            if isinstance(fault, OutageError):
                raise
            self._refusing.add(url)
            if self._refusing.issuperset(self.urls) and not any(map(KNOWN.has, self.urls)):
                raise RewardRejected(str(fault)) from fault
            raise fault.as_outage() from fault
        self._refusing.discard(url)
        KNOWN.add(url)
        return scores

    def _choose(self, turn: int) -> str:
        """The URL whose turn it is, or the next one that has not just failed."""
        order = [self.urls[(turn + step) % len(self.urls)] for step in range(len(self.urls))]
        now = time.monotonic()
        return next((url for url in order if self._rests_until.get(url, now) <= now), order[0])

    def _say(self, state: RetryCallState) -> None:
        now = time.monotonic()
        if now - self._spoke_at < SECONDS_BETWEEN_SENTENCES or state.outcome is None:
            return
        self._spoke_at, self._waits = now, True
        self.tell(
            f"Waiting for a reward, {state.seconds_since_start:.0f} s so far, "
            f"{self.deadline:.0f} s at most: {state.outcome.exception()}",
            waits=True,
        )

    def _say_over(self, seconds: float) -> None:
        if self._waits:
            self._waits = False
            self.tell(f"Rewards come again, after {seconds:.0f} s.", waits=False)


async def _ask(
    client: httpx.AsyncClient, url: str, chunk: Sequence[RewardRequest], timeout: float
) -> list[Score]:
    answer = await post_json(client, url, write_request(chunk), timeout)
    try:
        return read_answer(answer, len(chunk))
    except AnswerError as error:
        raise OutageError(url, f"an unusable answer: {error}") from error
