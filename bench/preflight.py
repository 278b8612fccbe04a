"""How long the preflight takes on this node, and a roll call of many workers.

Value: median wall time of a whole `doctor`, from the start of the process to its end. Beside it
the roll call of 64 and of 1,000 workers that check in over real HTTP from a few client processes:
how long after the last arrival the roll is complete, the head's memory, and how fast it answers
`/v1/state` and `/` meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from bench.boot import under_tini
from bench.result import report
from entrypoint.commands.demo import inherited
from entrypoint.net.port_block import PortBlock
from env.http.arguments import positive

TARGET_SECONDS = 3.0
ROLLS = (64, 1000)
COMPLETE_SECONDS, HEAD_MIB, ANSWER_SECONDS = 5.0, 300.0, 0.1
CLIENTS = 4
SPREAD_SECONDS = 10.0
"""Over which the workers arrive."""
ASK_EVERY_SECONDS = 0.05
WATCH_SECONDS = 5.0
"""For which the head is asked on after the roll is complete: each worker then asks once."""
TOKEN = "bench-preflight-token"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--rolls", type=positive, nargs="+", default=ROLLS)
    options = parser.parse_args()
    seconds = sorted(doctor() for _ in range(options.rounds))
    print(f"doctor: {', '.join(f'{one:.2f}' for one in seconds)} s", flush=True)
    rolls = {}
    for workers in options.rolls:
        rolls[str(workers)] = roll_call(workers)
        print(f"roll of {workers}: {rolls[str(workers)]}", flush=True)
    ok = report(
        "preflight",
        statistics.median(seconds),
        unit="s",
        target=TARGET_SECONDS,
        better="lower",
        detail={"rounds": options.rounds, "cores": os.cpu_count(), "rolls": rolls},
        besides=all(
            row["complete_seconds"] <= COMPLETE_SECONDS
            and row["head_mib"] <= HEAD_MIB
            and max(row["state_p99_seconds"], row["page_p99_seconds"]) <= ANSWER_SECONDS
            for row in rolls.values()
        ),
    )
    return 0 if ok else 1


def doctor() -> float:
    """Wall seconds of the whole command on this node, as its image starts it."""
    with tempfile.TemporaryDirectory(prefix="rollcall-doctor-") as run_dir:
        began = time.monotonic()
        done = subprocess.run(
            [*under_tini(), sys.executable, "-m", "entrypoint", "doctor", "--json"],
            env=inherited() | {"ROLLCALL_RUN_DIR": run_dir},
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"this node is not fit:\n{done.stdout}{done.stderr}")
    return seconds


def roll_call(workers: int) -> dict[str, Any]:
    arrival = ["--spread", str(SPREAD_SECONDS)]
    with tempfile.TemporaryDirectory(prefix="rollcall-crowd-") as directory, PortBlock() as port:
        url = f"http://127.0.0.1:{port}"
        arguments = ["--run", directory, "--port", str(port), "--workers", str(workers)]
        with ExitStack() as stack:
            head = stack.enter_context(started("head", *arguments, "--token", TOKEN))
            row_of(head)
            clients = [
                stack.enter_context(
                    started("workers", *numbers, "--url", url, "--token", TOKEN, *arrival)
                )
                for numbers in shares(workers)
            ]
            answers = asked(url, SPREAD_SECONDS + WATCH_SECONDS)
            last = max(row_of(client)["last_arrival"] for client in clients)
            complete = row_of(head)["complete_at"]
            assert head.stdin is not None
            head.stdin.close()
            used = row_of(head)
    return {
        "complete_seconds": round(complete - last, 2),
        "head_mib": round(used["mib"]),
        "head_cpu_seconds": round(used["cpu"], 1),
        **{f"{name}_p99_seconds": round(p99(one), 4) for name, one in answers.items()},
    }


def shares(workers: int) -> Iterator[list[str]]:
    """The workers of each client process."""
    bounds = [round(workers * part / CLIENTS) for part in range(CLIENTS + 1)]
    for first, end in pairwise(bounds):
        yield ["--first", str(first), "--count", str(end - first)]


@contextmanager
def started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", f"bench.crowd.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def row_of(process: subprocess.Popen[str]) -> dict[str, float]:
    """The next row that it prints; its sentences are passed over."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            row: dict[str, float] = json.loads(line)
            return row
    raise SystemExit(f"{process.args!r} ended with {process.wait()}")


def asked(url: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of each answer to a question for the state and for the page."""
    paths = {"state": "/v1/state", "page": "/"}
    answers: dict[str, list[float]] = {name: [] for name in paths}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
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
