"""Viewers of a run's page without browsers: each asks what the page asks, as often.

Each has the log of one node open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

import httpx

from entrypoint.processes.process import raise_open_files_limit

POLL_SECONDS, SLOW_SECONDS = 2.0, 10.0
"""As in page/main.js."""
ROUTINE = "step,checkpoint,eval,best,check-in,layout,files,download,service,command,step-found"
EVENTS = f"/v1/events?without={ROUTINE}&last=500"


@dataclass
class Counts:
    rounds: int = 0
    bytes: int = 0
    events: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each answer with a state."""


def main() -> int:
    """Prints a row for the first load of all, then one for the given seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--token")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    raise_open_files_limit()
    return asyncio.run(watch(parser.parse_args()))


async def watch(options: argparse.Namespace) -> int:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {options.token}", "Accept-Encoding": "gzip, deflate"}
    async with httpx.AsyncClient(
        base_url=options.url, headers=headers, limits=limits, timeout=60.0, trust_env=False
    ) as http:
        counts = Counts()
        viewers = [Viewer(http, counts) for _ in range(options.count)]
        await asyncio.gather(*(viewer.load() for viewer in viewers))
        tell(counts, 1.0)
        counts.__init__()  # type: ignore[misc]
        began = time.monotonic()
        tasks = [asyncio.create_task(viewer.stay()) for viewer in viewers]
        tasks += [asyncio.create_task(scrape(http))]
        await asyncio.sleep(options.seconds)
        tell(counts, time.monotonic() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return 0


def tell(counts: Counts, seconds: float) -> None:
    slowest = sorted(counts.seconds)
    row = {
        "rounds": counts.rounds,
        "bytes": counts.bytes,
        "events": counts.events,
        "seconds": seconds,
        "state_p99_seconds": slowest[int(0.99 * (len(slowest) - 1))] if slowest else 0.0,
    }
    print(json.dumps(row), flush=True)


class Viewer:
    def __init__(self, http: httpx.AsyncClient, counts: Counts) -> None:
        self._http = http
        self._counts = counts
        self._step, self._version = 0, ""
        self._slow_at = 0.0
        self._offset = -32768
        self._events: asyncio.Task[None] | None = None

    async def load(self) -> None:
        await self._get("/")
        await self._round()
        self._events = asyncio.create_task(self._follow())

    async def stay(self) -> None:
        try:
            while True:
                began = time.monotonic()
                await self._round()
                await asyncio.sleep(max(0.0, POLL_SECONDS - (time.monotonic() - began)))
        finally:
            if self._events:
                self._events.cancel()

    async def _round(self) -> None:
        began = time.monotonic()
        is_slow = began - self._slow_at >= SLOW_SECONDS or not self._slow_at
        await self._get("/v1/state" if is_slow else "/v1/state?brief=1")
        self._counts.seconds.append(time.monotonic() - began)
        if is_slow:
            self._slow_at = began
            await self._curves()
            await self._get("/v1/logs")
        offset = f"offset={self._offset}"
        self._offset = (await self._get(f"/v1/logs/worker-1?{offset}")).json()["offset"]
        self._counts.rounds += 1

    async def _curves(self) -> None:
        more = True
        while more:
            query = f"after={self._step}&version={self._version}"
            row = (await self._get(f"/v1/curves?{query}")).json()
            self._version, more = row["version"], row["more"]
            self._step = row["steps"][-1] if row["steps"] else self._step

    async def _get(self, path: str) -> httpx.Response:
        answer = await self._http.get(path)
        answer.raise_for_status()
        self._counts.bytes += answer.num_bytes_downloaded
        return answer

    async def _follow(self) -> None:
        async with self._http.stream("GET", EVENTS) as answer:
            async for line in answer.aiter_lines():
                self._counts.bytes += len(line) + 1
                self._counts.events += line.startswith("data:")


async def scrape(http: httpx.AsyncClient) -> None:
    while True:
        await http.get("/metrics")
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
