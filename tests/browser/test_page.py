"""What a person sees on the run's page, in a real browser."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from contract.journal import append_event, timestamp
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.job_queue_protocol import JobQueueProtocol
from entrypoint.cluster.server import HeadPhase
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.run import curves
from tests.support.accessible import DESKTOP, LOOKS, PHONE, fits, has_no_faults
from tests.support.control import Head, asking, node_info
from tests.support.queued_jobs import empty_queue
from tests.support.waiting import eventually

pytestmark = pytest.mark.browser
SLOW = "WARN gpu.clock: 900 of 1980 MHz → look at its cooling"


def opened(head: Head, tab: Page, *, controls: bool = False) -> None:
    tab.goto(head.link(controls=controls))


def trains(head: Head) -> None:
    """A run of some steps on one node of two; one of its checks did not pass."""
    flags = {"pretrain": f"/models/{'long-' * 20}tiny-7b", "actor_learning_rate": "1e-6"}
    began = timestamp(time.time() - 37 * 60 - 5)
    row = {"run_id": "a1", "recipe": "builtin", "model": "tiny-7b", "flags": flags}
    row |= {"created": began}
    head.run.run.write_text(json.dumps(row))
    rows = [
        {"step": step, "train/reward": step / 10, "train/acc": 0.5, "timing/update": 1.0}
        for step in range(1, 6)
    ]
    head.run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    progress = Progress(step=5, total_steps=10, attempt=2, reward=0.5, eta_seconds=50, checkpoint=4)
    progress.write(head.run.progress)
    for number in range(3):
        append_event(head.run.journal, "roll", f"event {number}")
    head.control.phase = HeadPhase.TRAINING
    head.client().check_in(
        replace(node_info("gpu-1"), warnings=("gpu.clock",), findings={"gpu.clock": SLOW}),
        joined=True,
    )


@pytest.mark.parametrize(
    ("size", "colours"),
    [
        pytest.param(*look, marks=() if look in LOOKS else pytest.mark.faults)
        for look in product((PHONE, DESKTOP), ("light", "dark"))
    ],
)
def test_a_training_run_is_seen_whole_by_everyone(
    head: Head, tab: Page, size: tuple[int, int], colours: str
) -> None:
    trains(head)
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.emulate_media(color_scheme="dark" if colours == "dark" else "light")
    with asking(head, "gpu-1"):
        opened(head, tab)
        expect(tab.locator("#state")).to_have_text("Training")
        facts = tab.locator("#facts")
        for fact in ("tiny-7b", "builtin", "5 of 10", "step 4", "50 s", "1 of 2"):
            expect(facts).to_contain_text(fact)
        tab.get_by_text("Flags that the run began with").click()
        expect(tab.locator("#given")).to_contain_text("actor_learning_rate1e-6")
        attention = tab.get_by_role("region", name="Needs attention")
        expect(attention).to_contain_text(f"gpu-1: {SLOW}")
        expect(attention).to_contain_text("1 worker not checked in yet")
        expect(tab.get_by_role("img", name="accuracy: 0.5 at step 1")).to_be_visible()
        expect(tab.locator("canvas")).to_have_count(2)
        expect(tab.locator("#times")).to_have_text(re.compile(r"^Started .*\d\d:\d\d, 37 min ago$"))
        expect(tab.locator("#updated")).to_contain_text("ago")
        expect(tab.locator("#events li").first).to_contain_text("event 2")
        fits(tab)
        has_no_faults(tab)


MOTION = """() => {
  const moves = [];
  for (const element of document.querySelectorAll("*"))
    for (const part of [null, "::before", "::after"]) {
      const style = getComputedStyle(element, part);
      const seconds = `${style.animationDuration}, ${style.transitionDuration}`.split(", ");
      const named = style.animationName !== "none" || style.transitionDuration !== "0s";
      if ((named && seconds.some((each) => parseFloat(each) > 0.01))
          || style.scrollBehavior === "smooth")
        moves.push(`${element.tagName}#${element.id}${part ?? ""}`);
    }
  return [...moves, ...document.getAnimations().map((each) => `a running ${each.playState}`)];
}"""
"""What moves by itself, or would move if it changed."""


def test_nothing_moves_for_a_reader_who_asked_for_less_motion(head: Head, tab: Page) -> None:
    trains(head)
    tab.emulate_media(reduced_motion="reduce")
    opened(head, tab, controls=True)
    expect(tab.locator(".uplot canvas").first).to_be_visible()
    assert tab.evaluate(MOTION) == []
    append_event(head.run.journal, "failure", "the training failed")
    tab.get_by_role("button", name="Save and stop…").click()
    expect(tab.get_by_role("dialog")).to_be_visible()
    assert tab.evaluate(MOTION) == []
    tab.evaluate("document.styleSheets[0].insertRule('h1 { transition: color 1s }')")
    assert tab.evaluate(MOTION) != []


def test_the_gpus_of_a_cluster_and_of_each_node_are_seen_in_use(head: Head, tab: Page) -> None:
    """Also if nobody knows how busy they are, as of parts of GPUs."""
    trains(head)
    registry = head.control._registry
    registry.poll_opened("gpu-1", gpus=[GpuUse(0.8, 40_000, 81_920), GpuUse(0.9, 42_000, 81_920)])
    registry.own_gpus([GpuUse(None, 1000, 40_960)])
    opened(head, tab)
    use = tab.get_by_role("img", name="Use of the GPUs, %")
    spread = re.compile("least: 80 at .*mean: 85 at .*most: 90 at ")
    expect(use).to_have_attribute("aria-label", spread)
    expect(tab.get_by_role("img", name="Memory of a GPU, GB. least: 1 at")).to_be_visible()
    rows = tab.locator("#nodes")
    expect(rows).to_contain_text("80–90 % busy, 41.9–44 of 86 GB used")
    expect(rows).to_contain_text("1 of 43 GB used")
    registry.poll_opened("gpu-1", gpus=[GpuUse(0.5, 40_000, 81_920)])
    expect(rows).to_contain_text("50 % busy, 41.9 of 86 GB used")
    expect(use).to_have_attribute("aria-label", re.compile(r"\b50 at "))


def test_a_phase_has_the_colour_that_it_has_in_the_report(head: Head, tab: Page) -> None:
    trains(head)
    row = {"step": 6, "timing/update": 2.0, "timing/generate": 3.0, "timing/new_phase": 1.0}
    with head.run.metrics.open("a") as file:
        file.write(json.dumps(row) + "\n")
    opened(head, tab)
    chart = tab.locator("figure", has_text="Time of a step by phase, seconds")
    markers = chart.locator(".u-marker")
    expect(markers).to_have_count(4)  # the steps, and three phases
    painted = markers.evaluate_all("all => all.map(one => one.style.border)")[1:]
    rgb = [
        f"rgb({int(c[1:3], 16)}, {int(c[3:5], 16)}, {int(c[5:], 16)})"
        for c in (
            curves.PHASES["generate"],
            curves.LINES[2],
            curves.PHASES["update"],
        )
    ]
    assert [colour in border for colour, border in zip(rgb, painted, strict=True)] == [True] * 3


def test_curves_beyond_the_fourth_are_dashed_in_colours_of_their_own(head: Head, tab: Page) -> None:
    trains(head)
    memory = {f"memory/part{number}_gb": 1.0 for number in range(len(curves.LINES) + 1)}
    with head.run.metrics.open("a") as file:
        file.write(json.dumps({"step": 6, **memory}) + "\n")
    opened(head, tab)
    first = tab.locator("figure", has_text="Peak memory, GB").locator(".u-series .u-marker")
    kinds = "all => all.map(one => getComputedStyle(one).borderTopStyle)"
    expect(first).to_have_count(9)  # the steps are the first
    assert first.evaluate_all(kinds)[1:] == ["solid"] * 4 + ["dashed"] * 4
    second = tab.locator("figure", has_text="Peak memory (2), GB").locator(".u-marker")
    assert second.evaluate_all(kinds)[1:] == ["dashed"]


def test_a_lost_head_is_said_in_red_and_its_return_repeats_nothing(head: Head, tab: Page) -> None:
    trains(head)
    opened(head, tab)
    expect(tab.locator("#events li")).to_have_count(3)
    head.control.__exit__()
    expect(tab.get_by_role("alert")).to_contain_text("The head has not answered since")
    expect(tab.locator("#state")).to_have_text("Head lost")
    append_event(head.run.journal, "start", "the head is back")
    back = Head(head.run.root, head.port)
    back.control.phase = HeadPhase.RECOVERING
    with back.control:
        expect(tab.locator("#state")).to_have_text("Recovering")
        expect(tab.get_by_role("alert")).to_be_hidden()
        expect(tab.locator("#events li").first).to_contain_text("the head is back")
        expect(tab.locator("#events li")).to_have_count(4)


@pytest.mark.parametrize("path", ["curves", "logs"])
def test_an_answer_that_never_comes_freezes_nothing_and_is_asked_for_again(
    head: Head, tab: Page, path: str
) -> None:
    trains(head)
    head.run.logs.mkdir(exist_ok=True)
    (head.run.logs / "head.log").write_text("it begins\n")
    hangs = f"**/v1/{path}?*"
    tab.route(hangs, lambda route: None)
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    head.control.phase = HeadPhase.RECOVERING
    expect(tab.locator("#state")).to_have_text("Recovering")
    expect(tab.locator("#logs option")).to_have_count(1)
    tab.unroute(hangs)
    expect(tab.locator("#logs option")).to_have_count(2)
    expect(tab.locator("canvas")).to_have_count(2)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("failed", "Failed"),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in (("finished", "Finished"), ("stopped", "Stopped"))
        ),
    ],
)
def test_the_end_is_no_lost_head(head: Head, tab: Page, outcome: str, word: str) -> None:
    trains(head)
    append_event(head.run.journal, "outcome", "this is how it ended", {"outcome": outcome})
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    head.control.announce(outcome, 0)
    expect(tab.locator("#state")).to_have_text(word)
    expect(tab.locator("#sentence")).to_have_text("this is how it ended")
    head.control.__exit__()
    expect(tab.locator("#updated")).to_contain_text("The head has ended.")
    expect(tab.get_by_role("alert")).to_be_hidden()


def test_a_head_that_ends_right_after_the_outcome_is_not_lost(head: Head, tab: Page) -> None:
    """No question about the state may come in between; the stream of events ends with the end."""
    trains(head)
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    expect(tab.locator("#events li")).to_have_count(3)
    tab.route("**/v1/state*", lambda route: route.abort())
    details = {"outcome": "stopped", "exit_code": 143}
    append_event(head.run.journal, "outcome", "step 5 is saved", details)
    head.control.__exit__()
    expect(tab.locator("#state")).to_have_text("Stopped")
    expect(tab.locator("#sentence")).to_have_text("step 5 is saved")
    expect(tab.locator("#verdict")).to_contain_text("The run was stopped.")
    tab.wait_for_timeout(10_000)  # longer than until a head counts as lost
    expect(tab.locator("#updated")).to_contain_text("The head has ended.")
    expect(tab.get_by_role("alert")).to_be_hidden()
    tab.unroute("**/v1/state*")
    append_event(head.run.journal, "start", "this is the head")
    back = Head(head.run.root, head.port)
    back.control.phase = HeadPhase.ROLL_CALL
    with back.control:
        expect(tab.locator("#state")).to_have_text("Waiting for nodes")


def test_a_thousand_nodes_are_counts_and_a_filter(head: Head, tab: Page) -> None:
    registry = head.control._registry
    registry.expected = 1000
    for number in range(1000):
        registry.check_in(node_info(f"gpu-{number}", f"10.0.{number // 250}.{number % 250}"), "")
    opened(head, tab)
    expect(tab.locator("#counts")).to_contain_text("of 1000 workers are there")
    expect(tab.locator("#nodes tr")).to_have_count(100)
    expect(tab.locator("#shown")).to_have_text("100 of 1001 nodes: filter to find others")
    tab.get_by_label("Filter").fill("gpu-777")
    expect(tab.locator("#nodes tr")).to_have_count(1)
    expect(tab.locator("#nodes")).to_contain_text("10.0.3.27")


@pytest.mark.parametrize(
    ("answer", "stops"), [("Go on training", []), ("Save and stop", ["asked over HTTP"])]
)
def test_a_stop_is_confirmed(head: Head, tab: Page, answer: str, stops: list[str]) -> None:
    trains(head)
    opened(head, tab, controls=True)
    tab.get_by_role("button", name="Save and stop…").click()
    tab.get_by_role("dialog").get_by_role("button", name=answer).click()
    expect(tab.get_by_role("dialog")).to_be_hidden()
    if stops:
        expect(tab.get_by_role("button", name="It saves and stops")).to_be_disabled()
    eventually(lambda: head.heard.stops == stops)


def test_samples_are_text_whatever_a_completion_says(head: Head, tab: Page) -> None:
    trains(head)
    evil = "<script>document.title=1</script></pre><img src=x onerror=document.title=1>"
    row = {"step": 5, "prompt": "1+1=", "turns": [{"reply": evil}], "reward": 0.25, "metrics": {}}
    head.run.samples.write_text(json.dumps(row) + "\n")
    opened(head, tab)
    tab.get_by_text("Some samples of the newest steps").click()
    expect(tab.get_by_role("article")).to_contain_text("Step 5 · reward 0.25")
    expect(tab.get_by_role("article")).to_contain_text(evil)
    assert tab.title() != "1"


def test_a_reader_has_no_button_and_sees_a_log_grow(head: Head, tab: Page) -> None:
    trains(head)
    log = head.run.logs / "head.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("<b>first</b>\n")
    opened(head, tab)
    tab.get_by_role("combobox", name="Log").select_option("head")
    expect(tab.get_by_role("log")).to_have_text("<b>first</b>\n")
    with log.open("a") as file:
        file.write("second\n")
    expect(tab.get_by_role("log")).to_have_text("<b>first</b>\nsecond\n")
    expect(tab.get_by_role("button", name="Save and stop…")).to_be_hidden()


def with_jobs(head: Head, *logs: str) -> None:
    """Jobs on one cluster, whose logs have the same name; an empty one has no log yet."""
    queue = empty_queue(head)
    for log in logs:
        run = RunFiles(Path(queue.submit(["true"], {})["run_dir"]))
        if log:
            (run.logs / "attempt-1.log").write_text(log)


def test_another_jobs_log_is_not_the_rest_of_the_log_before(head: Head, tab: Page) -> None:
    trains(head)
    with_jobs(head, "of the first job\n" * 9, "of the second job\n", "")
    head.control.jobs.shown = "job-1"
    opened(head, tab)
    tab.get_by_role("combobox", name="Log").select_option("attempt-1")
    expect(tab.get_by_role("log")).to_contain_text("of the first job")
    head.control.jobs.shown = "job-2"
    expect(tab.locator("#name")).to_contain_text("job-2")
    expect(tab.get_by_role("log")).to_have_text("of the second job\n")
    head.control.jobs.shown = "job-3"
    expect(tab.locator("#name")).to_contain_text("job-3")
    expect(tab.get_by_role("log")).to_have_text("")


def is_stopped(queue: JobQueueProtocol, job: str) -> bool:
    row = queue.row(job)
    return bool(row and row["state"] == "stopped")


def test_each_job_can_be_stopped(head: Head, tab: Page) -> None:
    trains(head)
    with_jobs(head, "", "")
    queue = head.control.jobs.queue
    assert queue is not None
    stop = tab.get_by_role("button", name="Save and stop…")
    for job in ("job-1", "job-2"):
        head.control.jobs.shown = job
        if job == "job-1":
            opened(head, tab, controls=True)
        expect(tab.locator("#name")).to_contain_text(job)
        stop.click()
        tab.get_by_role("dialog").get_by_role("button", name="Save and stop").click()
        expect(tab.get_by_role("button", name="It saves and stops")).to_be_disabled()
        eventually(partial(is_stopped, queue, job))


def test_the_stop_is_of_the_job_that_was_confirmed(head: Head, tab: Page) -> None:
    """The job may end while its reader thinks: neither the next job nor the cluster is stopped."""
    trains(head)
    with_jobs(head, "", "")
    queue = head.control.jobs.queue
    assert queue is not None
    head.control.jobs.shown = "job-1"
    opened(head, tab, controls=True)
    tab.get_by_role("button", name="Save and stop…").click()
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_contain_text("Stop job-1?")
    head.control.jobs.shown = None
    expect(tab.locator("#name")).not_to_contain_text("job-1")
    with tab.expect_response("**/stop") as answer:
        dialog.get_by_role("button", name="Save and stop").click()
    assert answer.value.url.endswith("/v1/jobs/job-1/stop")
    assert head.heard.stops == []
    assert (queue.row("job-2") or {})["state"] == "queued"
