"""A running cluster, asked by a program with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from rollcall.client import Client, ClusterState, Event, Job, now

T = TypeVar("T")


class AsyncClient:
    """`Client` for a program with an event loop: each method waits in a thread."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """As `Client`."""
        self._client = Client(url, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """There is nothing to close."""

    async def submit(
        self,
        command: str | Sequence[str],
        *,
        working_dir: str | Path | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Job:
        submit = partial(self._client.submit, working_dir=working_dir, name=name)
        return await asyncio.to_thread(submit, command, runtime_env=runtime_env)

    async def runs(self) -> list[Job]:
        return await asyncio.to_thread(self._client.runs)

    @overload
    async def status(self) -> ClusterState: ...
    @overload
    async def status(self, job: str | Job) -> Job: ...
    async def status(self, job: str | Job | None = None) -> ClusterState | Job:
        client = self._client
        return await asyncio.to_thread(
            lambda: client.status() if job is None else client.status(job)
        )

    @overload
    async def wait(self, *, timeout: float | None = None) -> ClusterState: ...
    @overload
    async def wait(self, job: str | Job, *, timeout: float | None = None) -> Job: ...
    async def wait(
        self, job: str | Job | None = None, *, timeout: float | None = None
    ) -> ClusterState | Job:
        client = self._client
        limit = client._limit(job, timeout)
        while not (found := await asyncio.to_thread(client._look, job, limit)).is_over:
            await asyncio.sleep(limit.pause(now(found)))
        return found

    async def stop(self, job: str | Job | None = None) -> None:
        await asyncio.to_thread(self._client.stop, job)

    def logs(self, job: str | Job | None = None, *, follow: bool = False) -> AsyncIterator[str]:
        return _in_thread(partial(self._client.logs, job, follow=follow))

    def events(self, job: str | Job | None = None, *, follow: bool = False) -> AsyncIterator[Event]:
        return _in_thread(partial(self._client.events, job, follow=follow))


async def _in_thread(begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yield what an iterator yields, which waits in a thread."""
    rows = await asyncio.to_thread(begin)
    while found := await asyncio.to_thread(lambda: list(_first(rows))):
        yield found[0]


def _first(rows: Iterator[T]) -> Iterator[T]:
    for row in rows:
        yield row
        return
