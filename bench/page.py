"""The page of a large run: how fast a browser shows it, and what its viewers cost the head.

A real head's control port with 1,000 nodes, 100,000 steps in `metrics.jsonl` and 20,000 lines in
the journal, which grow meanwhile. A real Chromium loads the page and keeps it open. Then 50 viewers
ask what the page asks, and Prometheus scrapes each second.

Value: the head's CPU for the viewers and the scrapes, in cores. Beside it the first paint, the
longest task of the page in CPU time, the bytes a second of one viewer, and the head's memory. On a
busy machine viewers ask less often than every 2 s: the head's CPU is scaled to that rate, and says
nothing below 0.8 of it. Wall times mean little there; a task's CPU time is of its thread alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Page, expect, sync_playwright

from bench.crowd import viewers
from bench.crowd.programs import row_of, started
from bench.result import report
from contract.journal import timestamp
from contract.journal_file.lines import line_of
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.access import page_link
from entrypoint.net.port_block import PortBlock
from entrypoint.run import token as run_token
from env.http.arguments import positive

TARGET_CORES = 0.5
PAINT_SECONDS, TASK_SECONDS, VIEWER_BYTES, HEAD_MIB = 1.0, 0.050, 60e3, 300.0
LEAST_SHARE = 0.8
"""Share of the questions that viewers ask on an idle machine. With fewer, each asks for more."""
TOO_BUSY = "a machine with idle cores: the viewers were kept waiting"
NODES, STEPS, LINES, VIEWERS, LOGS = 1000, 100_000, 20_000, 50, 1001
TOKEN = "bench-page-token"
TRACED = ["-*", "toplevel", "disabled-by-default-devtools.timeline", "__metadata"]
PHASES = ("rollout", "reward", "forward", "update", "publish", "wait")
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="for which each part looks")
    parser.add_argument("--viewers", type=positive, default=VIEWERS)
    options = parser.parse_args()
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g} are too short to see anything")
    with tempfile.TemporaryDirectory(prefix="rollcall-page-") as directory, PortBlock() as port:
        run = RunFiles(Path(directory))
        fill(run)
        url = f"http://127.0.0.1:{port}"
        given = ["--run", directory, "--port", str(port), "--workers", str(NODES)]
        with started("page_head", *given, "--token", TOKEN) as head, growing(run):
            row_of(head)
            own = psutil.Process(head.pid)
            browser = in_a_browser(url, options.seconds)
            print(f"browser: {browser}", flush=True)
            crowd = with_viewers(url, own, options)
            print(f"viewers: {crowd}", flush=True)
    ok = report(
        "page",
        crowd["head_cores"],
        unit="cores",
        target=TARGET_CORES,
        better="lower",
        detail={"browser": browser, "viewers": crowd, "load": round(os.getloadavg()[0], 1)},
        besides=browser["first_paint_seconds"] <= PAINT_SECONDS
        and browser["longest_task_cpu_seconds"] <= TASK_SECONDS
        and crowd["bytes_a_second_of_viewer"] <= VIEWER_BYTES
        and crowd["head_mib"] <= HEAD_MIB,
        lacking="" if crowd["rounds_share"] >= LEAST_SHARE else TOO_BUSY,
    )
    return 0 if ok else 1


def fill(run: RunFiles) -> None:
    run.logs.mkdir(parents=True)
    for number in range(LOGS):
        (run.logs / f"worker-{number}.log").write_text("it begins\n")
    with run.metrics.open("w") as file:
        file.writelines(row(step) for step in range(1, STEPS + 1))
    with run.journal.open("wb") as journal:
        journal.writelines(line(number) for number in range(LINES))
    command = ["--pretrain", "/models/tiny-7b"]
    run.run.write_text(json.dumps({"run_id": "a1", "recipe": "builtin", "command": command}))


def row(step: int) -> str:
    values: dict[str, float] = {"step": step, "train/reward": step % 97 / 97}
    values |= {f"train/{name}": step % 89 / 89 for name in ("reward_acc", "kl", "entropy", "acc")}
    values |= {"train/response_length": 400 + step % 83, "train/reward_std": 0.3}
    values |= {f"timing/{name}": 1 + step % 7 for name in PHASES} | {"timing/step": 30.0}
    values |= {f"memory/{name}_gb": 60.5 for name in PHASES} | {"perf/tokens_per_second": 9e3}
    values |= {"eval/acc": 0.5} if step % 50 == 0 else {}
    return json.dumps(values) + "\n"


def line(number: int) -> bytes:
    kind = ("step", "step", "step", "checkpoint", "failure")[number % 5]
    event = {
        "at": timestamp(),
        "node": "head",
        "epoch": 1,
        "attempt": 1,
        "kind": kind,
        "sentence": f"event {number} of the journal, a sentence of some length on what happened",
        "details": {"step": number, "failure": "engine-lost"},
    }
    return line_of(event) + b"\n"


@contextmanager
def growing(run: RunFiles) -> Iterator[None]:
    """A step a second, with what a run writes for it."""
    ended = threading.Event()

    def grow() -> None:
        step = STEPS
        while not ended.wait(1.0):
            step += 1
            with run.metrics.open("a") as metrics, run.journal.open("ab") as journal:
                metrics.write(row(step))
                journal.write(line(step))
            done = Progress(
                step=step, total_steps=2 * STEPS, attempt=3, reward=0.5, eta_seconds=1e5
            )
            done.write(run.progress)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_a_browser(url: str, seconds: float) -> dict[str, Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page()
        tab.goto(page_link(url, run_token.read_only(TOKEN)))
        expect(tab.locator("#state")).to_have_text("Training", timeout=60_000)
        browser.start_tracing(page=tab, categories=TRACED)
        tab.reload()
        expect(tab.locator("#state")).to_have_text("Training", timeout=60_000)
        shown = tab.evaluate("performance.now()") / 1000
        painted = tab.evaluate(PAINTED) / 1000
        tab.wait_for_timeout(2000)
        loaded = longest_tasks(browser.stop_tracing())
        received = counted(tab)
        browser.start_tracing(page=tab, categories=TRACED)
        began = time.monotonic()
        tab.wait_for_timeout(1000 * seconds)
        tasks = longest_tasks(browser.stop_tracing())
        took = time.monotonic() - began
        browser.close()
    return {
        "first_paint_seconds": round(painted, 3),
        "state_shown_seconds": round(shown, 3),
        "longest_task_cpu_seconds": round(max(tasks, default=0.0), 4),
        "longest_task_while_loading_cpu_seconds": round(max(loaded, default=0.0), 4),
        "page_core": round(sum(tasks) / took, 3),
        "bytes_a_second": round(received["bytes"] / took),
    }


def counted(tab: Page) -> dict[str, int]:
    """Bytes that the tab receives from now on; the answer grows."""
    received = {"bytes": 0}

    def add(event: dict[str, Any]) -> None:
        received["bytes"] += event["encodedDataLength"]

    session = tab.context.new_cdp_session(tab)
    session.send("Network.enable")
    session.on("Network.dataReceived", add)
    return received


def longest_tasks(trace: bytes) -> list[float]:
    """CPU seconds of each task on the main thread of the page."""
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event.get("tdur", event["dur"]) / 1e6
        for event in events
        if event["name"].endswith("RunTask")
        and event.get("ph") == "X"
        and (event["pid"], event["tid"]) in mains
    ]


def with_viewers(url: str, head: psutil.Process, options: argparse.Namespace) -> dict[str, Any]:
    given = ["--url", url, "--token", TOKEN, "--count", str(options.viewers)]
    with started("viewers", *given, "--seconds", str(options.seconds)) as crowd:
        first = row_of(crowd)
        before = head.cpu_times()
        row = row_of(crowd)
        after = head.cpu_times()
        mib = head.memory_info().rss / 2**20
    used = after.user + after.system - before.user - before.system
    cores = used / row["seconds"]
    wanted = options.viewers * row["seconds"] / viewers.POLL_SECONDS
    share = row["rounds"] / wanted
    return {
        "head_cores": round(cores / min(1.0, share), 3),
        "head_cores_measured": round(cores, 3),
        "rounds_share": round(share, 3),
        "bytes_a_second_of_viewer": round(row["bytes"] / row["rounds"] / viewers.POLL_SECONDS),
        "bytes_of_first_load": round(first["bytes"] / options.viewers),
        "state_p99_seconds": round(row["state_p99_seconds"], 3),
        "head_mib": round(mib),
    }


if __name__ == "__main__":
    sys.exit(main())
