"""Rewards over HTTP: a model behind our server and behind a plain loop; a restart under load.

256 clients send requests of one sample, each when the last is answered. Then 100,000 requests go to
a server that is stopped and started again midway: each must be scored once and answered once.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import aiohttp
import httpx

from bench.result import report
from entrypoint.net.port_block import PortBlock
from env.prepare.tiny_model import TinyModel
from tests.support.tiny_reward_model import write_reward_model

CLIENTS = 256
SECONDS = 15.0
ROUNDS = 3
TIMES_AS_MANY = 3.0
REQUESTS = 100_000
ALPHABET = "0123456789+= abcdefghijklmnopqrstuvwxyz"
TEXTS = [f"{n}+{n}={n + n} and so it is {'very ' * (n % 4)}true<eos>" for n in range(64)]
SHAPE = TinyModel(hidden_size=64, layers=12, heads=4, max_length=128)
WAIT_SECONDS = 300

COUNTING = """
import os
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def reward_func(queries, prompts, labels):
    os.write(log, "".join(f"{{query}}\\n" for query in queries).encode())
    return [float(query) for query in queries]
"""


OURS = ("-m", "trainer.models.serve_reward", "--host", "127.0.0.1")
SIDES = {
    "plain": lambda model, port: ["-m", "bench.sides.plain_reward_server", model, port],
    "ours": lambda model, port: [*OURS, "--model", model, "--port", port],
}


@contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = started(command, port)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def started(command: Sequence[str], port: int) -> subprocess.Popen[bytes]:
    """A server that accepts connections."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{command} ended with {process.returncode}")
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
            return process
        except httpx.RequestError:
            time.sleep(0.1)
    raise RuntimeError(f"{command} does not answer")


async def asked(session: aiohttp.ClientSession, url: str, text: str) -> float:
    """The reward of one text. A connection that the server closed meanwhile is not an answer."""
    body = {"query": [text], "prompts": [""], "labels": [None]}
    while True:
        try:
            async with session.post(url, json=body) as answer:
                answer.raise_for_status()
                reward: float = (await answer.json())["rewards"][0]
                return reward
        except (aiohttp.ClientConnectionError, ConnectionError):
            await asyncio.sleep(0.05)


def session_of_clients() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=120)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CLIENTS), timeout=timeout)


async def load(port: int, seconds: float) -> tuple[float, list[float], dict[str, float]]:
    """Answers a second, the seconds of each, and the reward of each text."""
    url = f"http://127.0.0.1:{port}/get_reward"
    taken: list[float] = []
    rewards: dict[str, float] = {}
    async with session_of_clients() as session:

        async def client(text: str, until: float) -> None:
            while (began := time.monotonic()) < until:
                rewards[text] = await asked(session, url, text)
                taken.append(time.monotonic() - began)

        await asyncio.gather(*(asked(session, url, text) for text in TEXTS))  # the first are slower
        began = time.monotonic()
        clients = (client(TEXTS[n % len(TEXTS)], began + seconds) for n in range(CLIENTS))
        await asyncio.gather(*clients)
        return len(taken) / (time.monotonic() - began), taken, rewards


async def ask_all(port: int) -> list[float]:
    """The reward of each number below REQUESTS, asked for one by one by all clients."""
    url = f"http://127.0.0.1:{port}/get_reward"
    found = [float("nan")] * REQUESTS
    numbers = iter(range(REQUESTS))
    async with session_of_clients() as session:

        async def client() -> None:
            for number in numbers:
                found[number] = await asked(session, url, str(number))

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found


def throughput(directory: Path) -> tuple[dict[str, list[float]], dict[str, float], float]:
    """Answers a second of each round and each server's p99; the largest difference of a reward."""
    model = str(write_reward_model(directory / "model", ALPHABET, shape=SHAPE))
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    waits: dict[str, list[float]] = {"plain": [], "ours": []}
    rewards: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for side in rates:
            with PortBlock() as port, serving(SIDES[side](model, str(port)), port):
                rate, taken, rewards[side] = asyncio.run(load(port, SECONDS))
            rates[side].append(rate)
            waits[side] += taken
    p99 = {side: quantiles(taken, n=100)[98] for side, taken in waits.items()}
    apart = max(abs(rewards["plain"][text] - rewards["ours"][text]) for text in TEXTS)
    return rates, p99, apart


def restart(directory: Path, port: int) -> dict[str, float]:
    """What came of requests to a server that is stopped by SIGTERM and started again midway."""
    log, task = directory / "scored.log", directory / "counting.py"
    task.write_text(COUNTING.format(log=str(log)))
    command = ["-m", "env.server", "--task", str(task), "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    processes = [started(command, port)]
    down: list[float] = []

    def midway() -> None:
        while not log.exists() or log.stat().st_size < REQUESTS // 2 * 6:
            time.sleep(0.02)
        began = time.monotonic()
        processes[0].send_signal(signal.SIGTERM)
        processes[0].wait()
        processes.append(started(command, port))
        down.append(time.monotonic() - began)

    stopper = threading.Thread(target=midway, daemon=True)
    stopper.start()
    began = time.monotonic()
    try:
        rewards = asyncio.run(ask_all(port))
    finally:
        for process in processes:
            process.kill()
    seconds = time.monotonic() - began
    scored = Counter(map(int, log.read_text().split()))
    return {
        "requests": REQUESTS,
        "answered": sum(reward == reward for reward in rewards),  # NaN is not an answer
        "wrong": sum(reward != n for n, reward in enumerate(rewards)),
        "never_scored": REQUESTS - len(scored),
        "scored_twice": sum(count > 1 for count in scored.values()),
        "restarts": len(processes) - 1,
        "seconds_down": round(down[0], 2) if down else -1,
        "requests_per_second": round(REQUESTS / seconds, 1),
    }


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bench-reward-") as temporary:
        directory = Path(temporary)
        rates, p99, apart = throughput(directory)
        print(json.dumps({"rates": rates, "p99": p99}), flush=True)
        with PortBlock() as port:
            under_load = restart(directory, port)
    times = [ours / plain for ours, plain in zip(rates["ours"], rates["plain"], strict=True)]
    exactly_once = (
        under_load["answered"] == REQUESTS
        and under_load["restarts"] == 1
        and not (under_load["wrong"] or under_load["never_scored"] or under_load["scored_twice"])
    )
    reached = report(
        "reward",
        median(times),
        unit="times the answers of a plain FastAPI loop",
        target=TIMES_AS_MANY,
        better="higher",
        detail={
            "clients": CLIENTS,
            "answers_per_second": {side: median(found) for side, found in rates.items()},
            "rounds": times,
            "p99_seconds": p99,
            "largest_difference_of_a_reward": apart,
            "restart_under_load": under_load,
        },
        besides=exactly_once and p99["ours"] < p99["plain"] and apart < 1e-3,
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
