"""Passages over HTTP: patient with outages, and an outage is never an empty result."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from zlib import crc32

from env.http.known_servers import KNOWN
from env.http.post import (
    CONNECTIONS,
    OutageError,
    RejectedError,
    check_url,
    patience,
    post_json,
    service_client,
    telling,
)
from env.retrieval.protocol import AnswerError, query_fault, read_answer, write_request
from env.retrieval.types import Document


class SearchStatus(StrEnum):
    OK = "ok"
    """The server has searched; no documents means that nothing fits."""
    REFUSED = "refused"
    """The query cannot be searched for, for example because it is empty; `error` says why."""
    FAILED = "failed"
    """All servers refuse the request, whatever the query: their address or topk is wrong.

    What a server refuses that has answered in this run is an outage."""
    UNREACHABLE = "unreachable"
    """No usable answer before the deadline. Nobody knows what would have been found."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    status: SearchStatus
    documents: tuple[Document, ...] = ()
    """The best first."""
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status is SearchStatus.OK


class Retriever:
    """Asks the retrieval server at `url`, such as http://127.0.0.1:8000/retrieve.

    `url` may be several with commas between, which have the same index. Their queries divide the
    searches among them, and each new try of a search asks the next. `timeout` is for one try, and
    doubles after each that was too short; `deadline` is for all tries of one search; both in
    seconds. One retriever belongs to one event loop.
    """

    def __init__(
        self, url: str, *, topk: int = 3, timeout: float = 30.0, deadline: float = 600.0
    ) -> None:
        """Raises ValueError for an address that is none, and for numbers that can be none."""
        self._urls = [one.strip() for one in url.split(",")]
        for one in self._urls:
            check_url(one, "http://127.0.0.1:8000/retrieve")
        if not isinstance(topk, int) or topk < 1:
            raise ValueError(f"topk is {topk!r}; wanted is a whole number from 1")
        for name, seconds in (("timeout", timeout), ("deadline", deadline)):
            if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise ValueError(f"{name} is {seconds!r}; wanted are seconds above 0")
        self._topk = topk
        self._timeout, self._deadline = timeout, deadline
        self._client = service_client()
        self._turns = asyncio.Semaphore(CONNECTIONS)

    async def __aenter__(self) -> Retriever:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def search(self, queries: Sequence[str]) -> list[SearchResult]:
        """One result for each query, in order. Raises nothing for bad queries or for outages."""
        faults = [query_fault(query) for query in queries]
        right = [query for query, fault in zip(queries, faults, strict=True) if not fault]
        found = iter(await self._search(right) if right else [])
        return [
            SearchResult(SearchStatus.REFUSED, error=fault) if fault else next(found)
            for fault in faults
        ]

    async def _search(self, queries: Sequence[str]) -> list[SearchResult]:
        begun, tries, longest = time.monotonic(), 0, self._timeout
        last: OutageError | None = None
        refusing: set[str] = set()
        first = crc32("\n".join(queries).encode())
        try:
            async for attempt in patience(self._deadline):
                with attempt:
                    url = self._urls[(first + tries) % len(self._urls)]
                    tries += 1
                    try:
                        async with self._turns:
                            left = begun + self._deadline - time.monotonic()
                            answers = await self._ask(url, queries, min(longest, left))
                    except OutageError as fault:
                        last = telling(last, fault, is_cut=left < longest)
                        longest *= 2 if fault.slow else 1
                        raise
                    except RejectedError as fault:
                        refusing.add(url)
                        if refusing.issuperset(self._urls) and not any(map(KNOWN.has, self._urls)):
                            raise
                        raise fault.as_outage() from fault
        except OutageError:
            error = (
                f"no usable answer for {time.monotonic() - begun:.0f} s ({tries} tries, deadline "
                f"{self._deadline:g} s); last: {last}"
            )
            return [SearchResult(SearchStatus.UNREACHABLE, error=error)] * len(queries)
        except RejectedError as fault:
            return [SearchResult(SearchStatus.FAILED, error=str(fault))] * len(queries)
        return [
            SearchResult(SearchStatus.REFUSED, error=answer)
            if isinstance(answer, str)
            else SearchResult(SearchStatus.OK, answer)
            for answer in answers
        ]

    async def _ask(
        self, url: str, queries: Sequence[str], timeout: float
    ) -> list[tuple[Document, ...] | str]:
        body = write_request(queries, self._topk)
        answer = await post_json(self._client, url, body, max(timeout, 0.0))
        try:
            found = read_answer(answer, len(queries))
        except AnswerError as error:
            raise OutageError(url, f"an unusable answer: {error}") from error
        KNOWN.add(url)
        return found
