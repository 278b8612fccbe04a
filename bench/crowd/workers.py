"""Workers without machines: each checks in, joins, and keeps its question open, over real HTTP.

Each has an address of its own on loopback, as nodes have: the head limits what one address may do.
They share two cores with the head, so they write HTTP by hand, at a fifth of the cost of httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.processes.process import raise_open_files_limit

RETRY_SECONDS = 0.5
ANSWER_SECONDS = 60.0
MOST_BYTES = 2**20
VERSIONS = {"python": "3.12.4", "ray": "2.55.0", "torch": "2.13.0", "nccl": "2.28.3"}


def main() -> int:
    """Prints when the last of them has joined, and how often they asked in vain; then stays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    parser.add_argument("--token")
    parser.add_argument("--first", type=int)
    parser.add_argument("--count", type=int)
    parser.add_argument("--begin", type=float, help="of the arrivals; seconds of the epoch")
    parser.add_argument("--spread", type=float, help="seconds over which they arrive")
    raise_open_files_limit()
    return asyncio.run(crowd(parser.parse_args()))


async def crowd(options: argparse.Namespace) -> int:
    numbers = range(options.first, options.first + options.count)
    workers = [Worker(number, options.port, options.token) for number in numbers]
    begin: float = options.begin - time.time()
    await asyncio.gather(*(worker.arrive(begin, options.spread) for worker in workers))
    joined, in_vain = time.time(), sum(worker.in_vain for worker in workers)
    print(json.dumps({"joined": joined, "in_vain": in_vain}), flush=True)
    await asyncio.gather(*(worker.stay() for worker in workers))
    return 0


@dataclass(slots=True)
class Worker:
    number: int
    port: int
    token: str
    in_vain: int = 0
    """Requests that the head left without an answer: each was made again."""
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None)

    async def arrive(self, begin: float, spread: float) -> None:
        """Check in and join. `begin`: seconds from now."""
        await asyncio.sleep(begin + random.Random(self.number).uniform(0.0, spread))
        info = NodeInfo(
            node=f"worker-{self.number}",
            address=f"10.{self.number >> 16}.{self.number >> 8 & 255}.{self.number & 255}",
            versions=VERSIONS,
            inventory={"cpus": 64, "gpus": 8, "memory_bytes": 2**40, "mtu": 9000},
            environment={"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "ens"},
        )
        for joined in (False, True):
            told = asdict(replace(info, joined=joined, clock=time.time()))
            await self.answered("POST /v1/check-in", json.dumps(told).encode())

    async def stay(self) -> None:
        """Ask for the outcome again and again, as a worker does."""
        while True:
            answer = await self.answered(f"GET /v1/outcome?node=worker-{self.number}")
            if answer["outcome"] != "running":
                return

    async def answered(self, line: str, body: bytes = b"") -> dict[str, Any]:
        """Ask again until there is an answer: a busy head ends connections that show no key."""
        while True:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                return await asyncio.wait_for(self._ask(line, body), ANSWER_SECONDS)
            self._streams, self.in_vain = None, self.in_vain + 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, line: str, body: bytes) -> dict[str, Any]:
        if self._streams is None:
            own = f"127.{1 + (self.number >> 16)}.{self.number >> 8 & 255}.{self.number & 255}"
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(own, 0), limit=MOST_BYTES
            )
        reader, writer = self._streams
        head = (
            f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAccept: */*\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status, *headers = answer.decode("latin-1").split("\r\n")
        lengths = [h.partition(":")[2] for h in headers if h.lower().startswith("content-length:")]
        content = await reader.readexactly(int(lengths[0]))
        if status.split(" ")[1] != "200":
            raise SystemExit(f"{line}: {status}: {content[:500]!r}")
        row: dict[str, Any] = json.loads(content)
        return row


if __name__ == "__main__":
    sys.exit(main())
