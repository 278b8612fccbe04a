"""The pictures of the docs: `make pictures` takes them again, and each run of these tests can."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from contract.journal import EventSource, append_event, timestamp
from contract.progress import Progress
from entrypoint.cluster.kept_runs import KeptRunsServer
from entrypoint.cluster.server import HeadPhase
from entrypoint.commands import report
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.run.lost_head import Failover
from tests.support import reported_runs
from tests.support.control import Head, answers, node_info
from tests.support.queued_jobs import works_at_a_queue
from tests.support.repository import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.browser
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
COLOURS = 128
PHONE, DESKTOP = (390, 844), (1100, 900)
GPUS = {"gpus": 8.0, "cpus": 128.0, "memory_bytes": 2.0**41, "gpu_memory_bytes": 80.0 * 2**30}
SILENT_SECONDS = 8
OF_HEAD = EventSource(attempt=1, node="head")


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """The head of a run whose name is fit for a picture."""
    root = tmp_path / "run-7"
    root.mkdir()
    head = Head(root)
    with head.control:
        eventually(lambda: answers(head.port))
        yield head


def at_a_users_place(tab: Page, directory: Path) -> None:
    """Show this directory as a user may have it, in place of the test's own."""
    own = json.dumps(str(directory))
    lies = f"dd => dd.textContent = dd.textContent.replace({own}, '/shared')"
    tab.evaluate(f"document.querySelectorAll('dd').forEach({lies})")


def keep(name: str, picture: bytes, directory: Path) -> None:
    """Write a picture with few colours: into the docs if `make pictures` asks for it."""
    into = IMAGES if os.environ.get("PICTURES") else directory
    into.mkdir(exist_ok=True)
    path = into / f"{name}.png"
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    assert 5_000 < path.stat().st_size < MOST_BYTES


def trains(head: Head) -> None:
    row = {"run_id": "a1", "recipe": "builtin", "model": "qwen-7b"}
    row |= {"created": timestamp(time.time() - 62 * 60)}
    head.run.run.write_text(json.dumps(row))
    rows = reported_runs.learns(60)
    head.run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    newest = {name: value for row in rows for name, value in row.items()}
    progress = Progress(
        step=60, total_steps=120, attempt=1, reward=newest["train/reward"], kl=newest["train/kl"],
        eval=newest["eval/accuracy"], checkpoint=50,
        tokens_per_second=9000, step_seconds=58, eta_seconds=3480,
    )  # fmt: skip
    progress.write(head.run.progress)
    journal = head.run.journal
    told = {"failover": Failover.of_head(120, "").as_dict()}
    append_event(journal, "start", "this is the head; it waits for 2 workers", told, source=OF_HEAD)
    for name in ("gpu-1", "gpu-2"):
        append_event(journal, "check-in", f"{name} checked in", {"node": name}, source=OF_HEAD)
    append_event(journal, "attempt", "attempt 1 starts on 3 nodes", source=OF_HEAD)
    registry = head.control._registry
    registry.me = replace(registry.me, inventory=GPUS)
    for name in ("gpu-1", "gpu-2"):
        info = node_info(name, f"10.0.0.{name[-1]}", gpu="NVIDIA H100 80GB HBM3")
        registry.check_in(replace(info, joined=True, inventory=GPUS), "")
        registry.poll_opened(name, gpus=[GpuUse(0.9 + n / 100, 61_000, 81_559) for n in range(8)])
    registry.own_gpus([GpuUse(0.88 + n / 100, 58_000, 81_559) for n in range(8)])
    for n in range(60):  # of the last five minutes
        busy = (0.95, 0.97, 0.6, 0.92)[n % 4]
        used = [GpuUse(busy - k / 50, 50_000 + 2_000 * (n % 4), 81_559) for k in range(8)]
        registry.gpu_history.add(used, at=time.time() - 5 * (60 - n))
    head.control.phase = HeadPhase.TRAINING
    head.control.sentence = "attempt 1 runs"


def recovers(head: Head) -> None:
    trains(head)
    journal = head.run.journal
    why = f"node_lost: gpu-2 has been silent for {SILENT_SECONDS} s"
    append_event(journal, "failure", why, {"failure": "node_lost"}, source=OF_HEAD)
    append_event(journal, "decision", "a node was lost: resuming from step 60", source=OF_HEAD)
    registry = head.control._registry
    lost = registry._entries["gpu-2"]
    registry.poll_closed(lost, hung_up=True)
    lost.seen_at -= SILENT_SECONDS
    head.control.phase = HeadPhase.RECOVERING
    head.control.sentence = "waiting for gpu-2"


@dataclass(frozen=True)
class Case:
    arrange: Callable[[Head], None]
    word: str
    size: tuple[int, int] = DESKTOP
    dark: bool = False
    dies: bool = False


CASES = {
    "page-training": Case(trains, "Training"),
    "page-recovering": Case(recovers, "Recovering"),
    "page-phone": Case(trains, "Training", PHONE, dark=True),
    "page-head-lost": Case(trains, "Head lost", PHONE, dies=True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_picture_of_the_page(head: Head, tab: Page, name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.arrange(head)
    width, height = case.size
    tab.set_viewport_size({"width": width, "height": height})
    tab.emulate_media(color_scheme="dark" if case.dark else "light")
    tab.goto(head.link())
    gpus = tab.locator("#charts details", has=tab.get_by_role("heading", name="GPUs"))
    expect(gpus).to_be_visible()  # on a phone it is folded
    if case.dies:
        head.control.__exit__()
    expect(tab.locator("#state")).to_have_text(case.word)
    keep(name, tab.screenshot(), tmp_path)


def test_a_picture_of_the_jobs_of_a_queue(head: Head, tab: Page, tmp_path: Path) -> None:
    ends = {"warm-up": "finished", "rate-1e-5": "failed", "rate-1e-6": "running", "eval": "queued"}
    trains(head)
    works_at_a_queue(head, ends)
    tab.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    tab.goto(head.link())
    for name in ("warm-up", "rate-1e-6"):
        tab.get_by_label(f"Curves of {name}").check()
    tab.get_by_text("Final values").click()  # folds them: the curves are seen
    together = tab.locator("#together")
    both = re.compile("^KL from.*(rate.*warm-up|warm-up.*rate)")
    expect(together.get_by_role("img", name=both)).to_be_visible()
    tab.evaluate("document.getElementById('runs').scrollIntoView()")
    keep("page-queue", tab.screenshot(), tmp_path)


def test_a_picture_of_the_curves_of_the_gpus(head: Head, tab: Page, tmp_path: Path) -> None:
    trains(head)
    tab.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    tab.goto(head.link())
    expect(tab.get_by_role("img", name=re.compile("Use of the GPUs"))).to_be_visible()
    keep("page-curves", tab.locator("#curves").screenshot(), tmp_path)


@pytest.mark.parametrize("name", ["report", "report-pipeline", "curve"])
def test_a_picture_of_the_report(tab: Page, name: str, tmp_path: Path) -> None:
    make = reported_runs.cluster if name == "report-pipeline" else reported_runs.with_faults
    run, page = make(tmp_path / "run-7"), tmp_path / "report.html"
    assert report.main([str(run.root), "--html", str(page)]) == 0
    tab.set_viewport_size({"width": DESKTOP[0], "height": 1300 if name == "report" else 900})
    tab.goto(page.as_uri())
    at_a_users_place(tab, tmp_path)
    if name == "report-pipeline":
        tab.get_by_role("heading", name="Pipeline").scroll_into_view_if_needed()
        tab.evaluate("document.querySelectorAll('h2')[1].scrollIntoView()")
    shown = tab.locator(".charts").first.screenshot() if name == "curve" else tab.screenshot()
    keep(name, shown, tmp_path)


def test_a_picture_of_a_run_after_its_end(tab: Page, tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "run-7")
    run.exported.mkdir()
    tab.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        expect(tab.get_by_role("img", name=re.compile("^Reward"))).to_be_visible()
        at_a_users_place(tab, tmp_path)
        keep("page-ended", tab.screenshot(), tmp_path)


def test_a_picture_of_two_runs_over_each_other(tab: Page, tmp_path: Path) -> None:
    slower = {"actor_learning_rate": "5e-7", "advantage_estimator": "rloo"}
    flags = ({"actor_learning_rate": "1e-6"}, slower)
    for name, rate, given in zip(("run-7", "run-8"), (1.0, 0.7), flags, strict=True):
        run = reported_runs.with_faults(tmp_path / "runs" / name)
        rows = [
            {key: value * (rate if "/" in key else 1) for key, value in row.items()}
            for row in reported_runs.learns(60)
        ]
        run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        begun = {"recipe": "builtin", "model": "tiny-7b", "flags": {"seed": "3", **given}}
        run.run.write_text(json.dumps(begun))
    reported_runs.tells_loss(tmp_path / "runs" / "sft")
    tab.set_viewport_size({"width": DESKTOP[0], "height": 1350})
    with KeptRunsServer(tmp_path / "runs") as server:
        tab.goto(server.link)
        for name in ("run-7", "run-8"):
            tab.get_by_label(f"Curves of {name}").check()
        tab.get_by_label("Smoothing").last.fill("0.8")
        smoothed = re.compile("^KL from.* smoothed .* smoothed ")
        expect(tab.get_by_role("img", name=smoothed)).to_be_visible()
        expect(tab.get_by_role("region", name="Flags that differ")).to_be_visible()
        keep("page-runs", tab.screenshot(), tmp_path)
