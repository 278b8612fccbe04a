"""A judge: a chat model behind an OpenAI-compatible endpoint, which says a score."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from env.http.client import RewardRejected, RewardUnreachable
from env.http.post import OutageError, RejectedError, check_url, patience, post_json
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
REFUSED = {401, 403, 404}
"""Answers to a wrong key, address or model: asking again would not help."""
TRIES = 3
"""Answers without a score, until the sample's reward is failed."""
LONGEST_ANSWER = 1024
"""Tokens."""


@dataclass(frozen=True)
class Judge:
    """A RewardFunction: the judge's score, divided by `best`.

    A sample for which the judge says no score is failed. If it answers none of a batch until the
    deadline, RewardUnreachable is raised; if the key, the address or the model is wrong,
    RewardRejected.
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
        found = asyncio.run(self._all(requests))
        outages = [one for one in found if isinstance(one, OutageError)]
        if outages and len(outages) == len(requests):
            raise RewardUnreachable(f"no answer for {self.deadline:.0f} s; last: {outages[0]}")
        return [Score.failed(str(one)) if isinstance(one, OutageError) else one for one in found]

    async def _all(self, requests: Sequence[RewardRequest]) -> list[Score | OutageError]:
        turns = asyncio.Semaphore(self.concurrency_of_requests)
        key = os.environ.get(KEY, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(headers=headers) as client:

            async def take_turn(request: RewardRequest) -> Score | OutageError:
                async with turns:
                    return await self._one(client, request)

            return list(await asyncio.gather(*map(take_turn, requests)))

    async def _one(self, client: httpx.AsyncClient, request: RewardRequest) -> Score | OutageError:
        said = ""
        for _ in range(TRIES):
            try:
                text = await self._answer(client, self._body(request))
            except OutageError as fault:
                return fault
            except RejectedError as fault:
                if fault.status in REFUSED:
                    raise RewardRejected(f"{fault}; is the model or {KEY} wrong?") from fault
                return Score.failed(str(fault))
            found = self.pattern.findall(text)
            score = _number(found[-1]) if found else None
            if score is not None and 0 <= score <= self.best:
                return Score.of(score / self.best)
            said = f"{found[-1]}, not 0 to {self.best:g}" if found else "no score"
        return Score.failed(f"the judge said {said} in {TRIES} answers")

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

    async def _answer(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> str:
        """Return the judge's words. Raises OutageError after retries, and RejectedError."""
        url = f"{self.url}/chat/completions"
        async for attempt in patience(self.deadline):
            with attempt:
                answer = await post_json(client, url, body, self.timeout)
                try:
                    content = answer["choices"][0]["message"]["content"]
                except (KeyError, IndexError, TypeError) as error:
                    raise OutageError(url, "an answer that is no chat completion") from error
                return content if isinstance(content, str) else ""
        raise AssertionError("tenacity returns or raises")


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
