"""A judge: a chat model behind an OpenAI-compatible endpoint, which says a score."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from env import coroutines
from env.http.client import RewardRejected, RewardUnreachable
from env.http.known_servers import KNOWN
from env.http.post import (
    OutageError,
    RejectedError,
    check_url,
    new_client,
    patience,
    post_json,
    telling,
)
from env.rewards.completion import completion_of
from env.types import RewardRequest, Score

KEY = "OPENAI_API_KEY"
"""Variable with the endpoint's key; without it no key is sent."""
TEMPLATE = """You judge the answer to a question.

Question:
{prompt}

Reference answer:
{label}

Answer to judge:
{response}

Say in a few words what is right and what is wrong. Then write one last line `Score: N`, where N is
a number from 0 (wrong or useless) to {best} (right and complete)."""
SCORE = r"score\s*[:=]\s*\**\s*(-?\d+(?:\.\d+)?)(?![\d.]*\d)"
REFUSED = {*range(300, 400), 401, 402, 403, 404, 405, 407, 410, 421}
"""Answers to a wrong key, address or model, not to one sample."""
TRIES = 3
"""Answers without a score, until the sample's reward is failed."""
LONGEST_ANSWER = 1024
"""Tokens."""


@dataclass(slots=True)
class _Batch:
    """What is known of the judge while it is asked about a batch."""

    client: httpx.AsyncClient
    heard: float
    """Time of a monotonic clock at which it last answered anyone, or the batch began."""
    fault: OutageError | None = None
    """The newest outage."""


@dataclass(frozen=True)
class Judge:
    """A RewardFunction: the judge's score, divided by `best`.

    A sample for which the judge says no score is failed. `deadline`: seconds of all tries and all
    askings about one sample; after so many seconds without an answer to anyone, the samples that
    wait are failed at once. If it answers none of a batch, RewardUnreachable is raised; if the key,
    the address or the model is wrong, RewardRejected, unless the judge has answered in this run.
    """

    url: str
    model: str
    template: str
    pattern: re.Pattern[str]
    best: float
    timeout: float
    deadline: float
    concurrency_of_requests: int

    def __call__(self, requests: Sequence[RewardRequest]) -> list[Score]:
        found = coroutines.run(self._all(requests))
        outages = [one for one in found if isinstance(one, OutageError)]
        if outages and len(outages) == len(requests):
            raise RewardUnreachable(f"no answer for {self.deadline:.0f} s; last: {outages[0]}")
        return [Score.failed(str(one)) if isinstance(one, OutageError) else one for one in found]

    async def _all(self, requests: Sequence[RewardRequest]) -> list[Score | OutageError]:
        turns = asyncio.Semaphore(self.concurrency_of_requests)
        key = os.environ.get(KEY, "").strip()
        async with _client(self.url, self.concurrency_of_requests) as client:
            if key:
                client.headers["Authorization"] = f"Bearer {key}"
            batch = _Batch(client, time.monotonic())

            async def take_turn(request: RewardRequest) -> Score | OutageError:
                async with turns:
                    return await self._one(batch, request)

            return list(await asyncio.gather(*map(take_turn, requests)))

    async def _one(self, batch: _Batch, request: RewardRequest) -> Score | OutageError:
        begun, answers, said = time.monotonic(), 0, ""
        while answers < TRIES and (left := self._left(begun, batch)) > 0:
            try:
                text = await self._answer(batch.client, self._body(request), left)
            except OutageError as fault:
                batch.fault = telling(batch.fault, fault, is_cut=left < self.timeout)
                return batch.fault
            except RejectedError as fault:
                batch.heard = time.monotonic()
                if fault.status in REFUSED:
                    raise RewardRejected(f"{fault}; is the model or {KEY} wrong?") from fault
                return Score.failed(str(fault))
            batch.heard = time.monotonic()
            answers += 1
            found = self.pattern.findall(text)
            score = _number(found[-1]) if found else None
            if score is not None and 0 <= score <= self.best:
                return Score.of(score / self.best)
            said = f"{found[-1]}, not 0 to {self.best:g}" if found else "no score"
        if not answers:
            return batch.fault or OutageError(self.url, f"no answer within {self.deadline:g} s")
        return Score.failed(f"the judge said {said} in {answers} answers")

    def _left(self, begun: float, batch: _Batch) -> float:
        """Return the seconds until the deadline of a sample, whose asking began at `begun`."""
        return min(begun, batch.heard) + self.deadline - time.monotonic()

    def _body(self, request: RewardRequest) -> dict[str, Any]:
        parts = {
            "{prompt}": request.prompt,
            "{response}": completion_of(request),
            "{label}": request.label or "",
            "{best}": f"{self.best:g}",
        }
        # One pass: a part may itself have the name of another.
        names = re.compile("|".join(map(re.escape, parts)))
        text = names.sub(lambda name: parts[name[0]], self.template)
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": LONGEST_ANSWER,
        }

    async def _answer(
        self, client: httpx.AsyncClient, body: Mapping[str, Any], seconds: float
    ) -> str:
        """Return the judge's words. Raises OutageError after retries, and RejectedError."""
        until = time.monotonic() + seconds
        last: OutageError | None = None
        async for attempt in patience(seconds):
            with attempt:
                left = max(0.0, until - time.monotonic())
                try:
                    return await self._try(client, body, min(self.timeout, left))
                except OutageError as fault:
                    last = telling(last, fault, is_cut=left < self.timeout)
                    raise last from None
        raise AssertionError("tenacity returns or raises")

    async def _try(self, client: httpx.AsyncClient, body: Mapping[str, Any], seconds: float) -> str:
        url = f"{self.url}/chat/completions"
        try:
            answer = await post_json(client, url, body, seconds)
        except RejectedError as refusal:
            if refusal.status in REFUSED and KNOWN.has(url):
                raise refusal.as_outage() from refusal
            raise
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise OutageError(url, "an answer that is not a chat completion") from error
        KNOWN.add(url)
        return content if isinstance(content, str) else ""


def _client(url: str, connections: int) -> httpx.AsyncClient:
    """Return a client that goes through the proxy of the environment, if the judge is far away.

    Raises ValueError for a proxy that cannot be used.
    """
    if _is_near(httpx.URL(url).host):
        return new_client(connections)
    try:
        return httpx.AsyncClient(limits=httpx.Limits(max_connections=connections))
    except ImportError as error:
        raise ValueError(
            "judge: the proxy in ALL_PROXY, HTTPS_PROXY or HTTP_PROXY is one of SOCKS, which needs "
            "`pip install httpx[socks]`; or give a proxy of HTTP"
        ) from error
    except (ValueError, httpx.InvalidURL) as error:  # its text may have the proxy's password
        raise ValueError(
            "judge: the proxy in ALL_PROXY, HTTPS_PROXY or HTTP_PROXY is not a URL such as "
            "http://proxy:3128"
        ) from error


def _is_near(host: str) -> bool:
    """Return whether a host is surely on this machine or in its network: no proxy leads to it."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def _number(text: str) -> float | None:
    """Return a number that a user's pattern has found; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def make(
    url: str = "",
    model: str = "",
    template: str = "",
    pattern: str = SCORE,
    best: float = 10.0,
    timeout: float = 60.0,
    deadline: float = 600.0,
    concurrency: int = 16,
) -> Judge:
    """Return a judge. `url` ends before `/chat/completions`; `template` is a file.

    Raises ValueError for an option that is missing or wrong.
    """
    if not model:
        raise ValueError("judge wants model=NAME, the model that the endpoint serves")
    check_url(url, "http://host:8000/v1")
    if "@" in url:
        raise ValueError(f"judge: the url holds a password; give a key in the variable {KEY}")
    if min(best, timeout, deadline, concurrency) <= 0:
        raise ValueError("judge: best, timeout, deadline and concurrency are above 0")
    _client(url, concurrency)  # a proxy that cannot be used ends the run before its first step
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"judge: pattern {pattern!r}: {error}") from error
    if compiled.groups != 1:
        raise ValueError(f"judge: pattern {pattern!r} wants one group, around the score")
    text = _read(Path(template)) if template else TEMPLATE
    return Judge(url.rstrip("/"), model, text, compiled, best, timeout, deadline, concurrency)


def _read(path: Path) -> str:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"judge: template {path}: {reason}") from error
    if "{response}" not in text:
        raise ValueError(f"judge: template {path} has no {{response}} for the answer to judge")
    return text
