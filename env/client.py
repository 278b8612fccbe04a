"""Rewards over HTTP: chunks over the servers in turn, patient with outages, honest about failures.

Each chunk tries one server after the other until one answers or its deadline has passed. What
cannot be scored is a failed Score; a server that never answers is RewardUnreachable; never a zero.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_before_delay,
    wait_exponential_jitter,
)

from env.protocol import AnswerError, read_answer, write_request
from env.types import RewardRequest, Score

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_SENTENCES = 30.0
SECONDS_OF_REST = 15.0
"""How long a server that failed is passed over while others answer."""
WORTH_ANOTHER_TRY = {408, 425, 429}
"""Client errors that pass by themselves."""
LONGEST_WAIT = 15.0


class RewardUnreachable(RuntimeError):  # noqa: N818 - it names a state, as the exit code does
    """No usable answer before the deadline."""


class RewardRejected(RuntimeError):  # noqa: N818
    """The server understood and refused: asking again would not help."""


class _OutageError(Exception):
    """A fault that may pass."""

    def __init__(self, url: str, fault: str, wait: float = 0.0, *, slow: bool = False) -> None:
        super().__init__(f"{url}: {fault}")
        self.slow = slow
        """Whether a longer try might have brought an answer."""
        self.wait = wait
        """Seconds for which the server asked to be left alone."""


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
    tell: Callable[[str], None] = logger.warning
    _spoke_at: float = field(default=float("-inf"), init=False, repr=False)
    _waits: bool = field(default=False, init=False, repr=False)
    _rests_until: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.urls:
            raise ValueError("no reward URL given")
        for url in self.urls:
            _check(url)

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        return asyncio.run(self._score(requests))

    async def _score(self, requests: Sequence[RewardRequest]) -> list[Score]:
        # Every server gets its share even of a small batch.
        size = max(1, min(self.chunk_size, -(-len(requests) // len(self.urls))))
        chunks = [requests[start : start + size] for start in range(0, len(requests), size)]
        turns = asyncio.Semaphore(self.concurrency)

        async def take_turn(number: int, chunk: Sequence[RewardRequest]) -> list[Score]:
            async with turns:
                return await self._score_chunk(client, number, chunk)

        # A transport of our own: the servers belong to the cluster, HTTP_PROXY is not for them.
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as client:
            scored = await asyncio.gather(*(take_turn(*chunk) for chunk in enumerate(chunks)))
        return [score for scores in scored for score in scores]

    async def _score_chunk(
        self, client: httpx.AsyncClient, number: int, chunk: Sequence[RewardRequest]
    ) -> list[Score]:
        begun, tries, longest = time.monotonic(), 0, self.timeout
        try:
            async for attempt in self._patience():
                with attempt:
                    url = self._choose(number + tries)
                    tries += 1
                    left = begun + self.deadline - time.monotonic()
                    try:
                        scores = await self._try(client, url, chunk, min(longest, left))
                    except _OutageError as fault:
                        longest *= 2 if fault.slow else 1
                        raise
        except _OutageError as fault:
            raise RewardUnreachable(
                f"no usable answer for {time.monotonic() - begun:.0f} s "
                f"({tries} tries, deadline {self.deadline:.0f} s); last: {fault}"
            ) from fault
        if tries > 1:
            self._say_over(time.monotonic() - begun)
        return scores

    async def _try(
        self, client: httpx.AsyncClient, url: str, chunk: Sequence[RewardRequest], timeout: float
    ) -> list[Score]:
        try:
            return await _ask(client, url, chunk, timeout)
        except _OutageError:
            self._rests_until[url] = time.monotonic() + SECONDS_OF_REST
            raise

    def _patience(self) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception_type(_OutageError),
            stop=stop_before_delay(self.deadline),
            wait=_wait,
            before_sleep=self._say,
            reraise=True,
        )

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
            f"{self.deadline:.0f} s at most: {state.outcome.exception()}"
        )

    def _say_over(self, seconds: float) -> None:
        if self._waits:
            self._waits = False
            self.tell(f"Rewards come again, after {seconds:.0f} s.")


async def _ask(
    client: httpx.AsyncClient, url: str, chunk: Sequence[RewardRequest], timeout: float
) -> list[Score]:
    try:
        async with asyncio.timeout(timeout):  # httpx's own limits hold for each read, not the whole
            response = await client.post(url, json=write_request(chunk), timeout=None)
    except TimeoutError:
        raise _OutageError(url, f"no answer within {timeout:.0f} s", slow=True) from None
    except httpx.RequestError as error:
        raise _OutageError(url, f"{type(error).__name__}: {error}") from error
    if response.status_code >= 500 or response.status_code in WORTH_ANOTHER_TRY:
        raise _OutageError(url, _words(response), _retry_after(response))
    if response.status_code >= 300:
        raise RewardRejected(f"{url}: {_words(response)}")
    try:
        return read_answer(response.json(), len(chunk))
    except (AnswerError, ValueError) as error:
        raise _OutageError(url, f"an unusable answer: {error}") from error


_BACKOFF = wait_exponential_jitter(multiplier=0.2, max=LONGEST_WAIT, jitter=0.2)


def _wait(state: RetryCallState) -> float:
    fault = state.outcome.exception() if state.outcome else None
    asked_for = fault.wait if isinstance(fault, _OutageError) else 0.0
    return max(_BACKOFF(state), min(asked_for, LONGEST_WAIT))


def _retry_after(response: httpx.Response) -> float:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def _words(response: httpx.Response) -> str:
    """Status and what the server said, short enough for one line."""
    said = " ".join(response.text.split())
    return f"HTTP {response.status_code} {response.reason_phrase}: {said[:200]}".rstrip(": ")


def _check(url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"'{url}' is no URL: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"'{url}' is no URL such as http://head:5000/get_reward")
