"""Workers without machines: each checks in, joins, and keeps its question open, over real HTTP."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import httpx

from entrypoint.cluster.client import ANSWER_TIMEOUT_SECONDS
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.processes.process import raise_open_files_limit

RETRY_SECONDS = 0.5
VERSIONS = {"python": "3.12.4", "ray": "2.55.0", "torch": "2.13.0", "nccl": "2.28.3"}


def main() -> int:
    """Prints when the last of them sent its first check-in; ends with the run, or is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--token")
    parser.add_argument("--first", type=int)
    parser.add_argument("--count", type=int)
    parser.add_argument("--spread", type=float)
    raise_open_files_limit()
    return asyncio.run(crowd(parser.parse_args()))


async def crowd(options: argparse.Namespace) -> int:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {options.token}"}
    own: dict[str, Any] = {"headers": headers, "limits": limits, "timeout": ANSWER_TIMEOUT_SECONDS}
    async with httpx.AsyncClient(base_url=options.url, trust_env=False, **own) as http:
        numbers = range(options.first, options.first + options.count)
        stays: list[asyncio.Task[None]] = []

        async def live(number: int) -> float:
            began = await arrive(http, number, options.spread)
            stays.append(asyncio.create_task(stay(http, number)))
            return began

        last = max(await asyncio.gather(*map(live, numbers)))
        print(json.dumps({"last_arrival": last}), flush=True)
        await asyncio.gather(*stays)
    return 0


async def arrive(http: httpx.AsyncClient, number: int, spread: float) -> float:
    """When the first check-in was sent, seconds of the epoch."""
    await asyncio.sleep(random.Random(number).uniform(0.0, spread))
    began = time.time()
    info = NodeInfo(
        node=f"worker-{number}",
        address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        versions=VERSIONS,
        inventory={"cpus": 64, "gpus": 8, "memory_bytes": 2**40, "mtu": 9000},
        environment={"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "ens"},
    )
    for joined in (False, True):

        def check_in(joined: bool = joined) -> Awaitable[httpx.Response]:
            told = asdict(replace(info, joined=joined, clock=time.time()))
            return http.post("/v1/check-in", json=told)

        await answered(check_in)
    return began


async def answered(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Ask again until there is an answer: a busy head ends connections that have shown no key."""
    while True:
        with suppress(httpx.TransportError):
            answer = await ask()
            return answer.raise_for_status()
        await asyncio.sleep(RETRY_SECONDS)


async def stay(http: httpx.AsyncClient, number: int) -> None:
    """Ask for the outcome again and again, as a worker does."""
    while True:
        ask = partial(http.get, "/v1/outcome", params={"node": f"worker-{number}"})
        answer = await answered(ask)
        if answer.json()["outcome"] != "running":
            return


if __name__ == "__main__":
    sys.exit(main())
