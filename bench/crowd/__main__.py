"""How soon a roll of many workers is complete, and what each costs its head for an hour.

Workers without machines check in, join and ask for the outcome over real HTTP, from a few client
processes, each from an address of its own. All arrive within a second. Value: seconds from the
first of 1,000 arrivals until the roll is complete. Of each size of a roll: the head's memory, its
answers to `/v1/state` and `/` meanwhile, and its CPU once all are there. `bench.age` measures a
journal of a year.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import httpx

from bench.crowd.programs import row_of, started
from bench.result import report
from entrypoint.net.port_block import PortBlock
from env.http.arguments import positive

ROLLS = (64, 1_000, 10_000)
COMPARED = 1_000
COMPLETE_SECONDS, HEAD_MIB, ANSWER_SECONDS = 5.0, 300.0, 0.1
"""What is asked of a roll of up to 1,000; a larger one is shown."""
CLIENTS = 4
SPREAD_SECONDS = 1.0
"""Over which the workers arrive, as after one `srun` of all."""
START_SECONDS = 4.0
"""For the client processes, before the first arrival."""
ASK_EVERY_SECONDS = 0.05
WATCH_SECONDS = 20.0
"""For which the head is watched after the roll is complete: each of 1,000 then asks five times."""
TOKEN = "bench-crowd-token"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rolls", type=positive, nargs="+", default=ROLLS)
    options = parser.parse_args()
    rolls = {}
    for workers in options.rolls:
        rolls[workers] = roll_call(workers)
        print(f"roll of {workers}: {rolls[workers]}", flush=True)
    asked_of = [row for workers, row in rolls.items() if workers <= COMPARED]
    compared = rolls.get(COMPARED)
    ok = report(
        "crowd",
        compared["complete_seconds"] if compared else 0.0,
        unit="s",
        target=COMPLETE_SECONDS,
        better="lower",
        detail={"cores": os.cpu_count(), "rolls": rolls, "load": round(os.getloadavg()[0], 1)},
        besides=all(
            row["complete_seconds"] <= COMPLETE_SECONDS
            and row["head_mib"] <= HEAD_MIB
            and max(row["state_p99_seconds"], row["page_p99_seconds"]) <= ANSWER_SECONDS
            for row in asked_of
        ),
        lacking="" if compared else f"a roll of {COMPARED} was not asked for",
    )
    return 0 if ok else 1


def roll_call(workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rollcall-crowd-") as directory, PortBlock() as port:
        url, access = f"http://127.0.0.1:{port}", ["--port", str(port), "--token", TOKEN]
        arguments = ["--run", directory, "--port", str(port), "--workers", str(workers)]
        with ExitStack() as stack:
            head = stack.enter_context(started("head", *arguments, "--token", TOKEN))
            alone = row_of(head)
            begin = time.time() + START_SECONDS
            arrival = ["--begin", str(begin), "--spread", str(SPREAD_SECONDS)]
            clients = [
                stack.enter_context(started("workers", *numbers, *access, *arrival))
                for numbers in shares(workers)
            ]
            time.sleep(max(0.0, begin - time.time()))
            meanwhile = asked(url, SPREAD_SECONDS)
            in_vain = sum(row_of(client)["in_vain"] for client in clients)
            complete = row_of(head)
            began = time.time()
            answers = asked(url)
            watched = time.time() - began
            assert head.stdin is not None
            head.stdin.close()
            used = row_of(head)
    return {
        "complete_seconds": round(complete["complete_at"] - begin, 2),
        "asked_in_vain": in_vain,
        "head_mib": round(used["mib"]),
        "kib_a_worker": round(1024 * (used["mib"] - alone["mib"]) / workers, 1),
        "cpu_seconds_a_check_in": round((complete["cpu"] - alone["cpu"]) / workers, 5),
        "cores_while_all_are_there": round((used["cpu"] - complete["cpu"]) / watched, 3),
        "cpu_seconds_a_worker_and_hour": round(
            3600 * (used["cpu"] - complete["cpu"]) / watched / workers, 2
        ),
        **{f"{name}_p99_seconds": round(p99(one), 4) for name, one in answers.items()},
        **{f"{name}_meanwhile_seconds": round(max(one), 2) for name, one in meanwhile.items()},
    }


def shares(workers: int) -> Iterator[list[str]]:
    """The workers of each client process."""
    bounds = [round(workers * part / CLIENTS) for part in range(CLIENTS + 1)]
    for first, end in pairwise(bounds):
        yield ["--first", str(first), "--count", str(end - first)]


def asked(url: str, seconds: float = WATCH_SECONDS) -> dict[str, list[float]]:
    """Seconds of each answer to a question for the state and for the page."""
    paths = {"state": "/v1/state", "page": "/"}
    answers: dict[str, list[float]] = {name: [] for name in paths}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60.0) as http:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, path in paths.items():
                began = time.perf_counter()
                http.get(path).raise_for_status()
                answers[name].append(time.perf_counter() - began)
            time.sleep(ASK_EVERY_SECONDS)
    return answers


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


if __name__ == "__main__":
    sys.exit(main())
