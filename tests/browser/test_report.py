"""The report of a run, in a real browser: for everyone, from no other host, and never code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from contract.run_dir import RunFiles
from entrypoint.commands import report
from entrypoint.run.flight_record import html
from tests.support import reported_runs
from tests.support.accessible import DESKTOP, LOOKS, PHONE, fits, has_no_faults
from tests.support.broken_words import ROWS_OF_WORDS
from tests.support.flight_events import Clock

pytestmark = pytest.mark.browser
EVIL = "</p><script>document.title=1</script><img src=//host.invalid/x onerror='document.title=1'>"


def opened(tab: Page, run: RunFiles) -> list[str]:
    """Show the report; return the addresses that the browser asks for."""
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    page = run.root.parent / "report.html"
    assert report.main([str(run.root), "--html", str(page)]) == 0
    tab.goto(page.as_uri())
    return asked


@pytest.mark.parametrize(
    ("size", "colours"),
    [
        pytest.param(*look, marks=() if look in LOOKS else pytest.mark.faults)
        for look in product((PHONE, DESKTOP), ("light", "dark"))
    ],
)
@pytest.mark.parametrize(
    "make", [reported_runs.with_faults, reported_runs.cluster, reported_runs.tells_nothing]
)
def test_a_report_is_seen_whole_by_everyone_and_asks_no_host(
    tab: Page,
    tmp_path: Path,
    make: Callable[[Path], RunFiles],
    size: tuple[int, int],
    colours: str,
) -> None:
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.emulate_media(color_scheme="dark" if colours == "dark" else "light")
    asked = opened(tab, make(tmp_path / "run-7"))
    expect(tab.get_by_role("heading", level=1)).to_contain_text("run-7")
    fits(tab)
    assert set(tab.locator("thead th").evaluate_all(ROWS_OF_WORDS)) == {1}
    assert tab.locator("script[src], img, link, iframe").count() == 0
    assert asked == [tab.url]
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 28)"
    assert dark == (colours == "dark")
    has_no_faults(tab)


def test_a_run_has_its_curves_its_timeline_and_its_time_in_pictures(
    tab: Page, tmp_path: Path
) -> None:
    opened(tab, reported_runs.with_faults(tmp_path / "run-7"))
    pictures = tab.get_by_role("img")
    names = [pictures.nth(n).get_attribute("aria-label") or "" for n in range(pictures.count())]
    begins = ["Reward. ", "Held-out accuracy. ", "Timeline: ", "Use of the time. ", "Phases of "]
    assert [name[: len(begin)] for name, begin in zip(names, begins, strict=True)] == begins
    assert "at step 60" in names[0]
    assert names[1].count(":") == 1  # the share of replies that were cut off is not an accuracy
    assert names[2] == "Timeline: 2 attempts, 1 failure and 1 repair in 1 h 3 min"
    assert "training 94.2%" in names[3]
    assert "generate 41.4%" in names[4]
    for picture in pictures.all():
        box = picture.bounding_box()
        assert box
        assert min(box["width"], box["height"]) > 20
    expect(tab.get_by_role("article")).to_contain_text("worker-1 has been silent for 8 s")
    expect(tab.get_by_role("list").last).to_contain_text("engine 1 is there again")
    rows = tab.get_by_role("region", name="The attempts of run-7").get_by_role("row")
    expect(rows).to_have_count(3)


UNFOLDED = """() => new Promise(tell => addEventListener("beforeprint", async () => tell({
  folded: document.querySelectorAll("details:not([open])").length,
  ink: getComputedStyle(document.body).color,
  widths: [...document.querySelectorAll("figure .uplot")].map(one => one.clientWidth),
})))"""


def test_a_printed_report_has_all_its_charts_unfolded_and_in_dark_ink(
    tab: Page, tmp_path: Path
) -> None:
    tab.emulate_media(color_scheme="dark")
    opened(tab, reported_runs.with_faults(tmp_path / "run-7"))
    folded = tab.locator("details:not([open])")
    before = folded.count()
    assert before >= 1
    tab.evaluate(f"globalThis.printed = ({UNFOLDED})(); 0")
    assert tab.pdf().startswith(b"%PDF")
    printed = tab.evaluate("printed")
    assert (printed["folded"], printed["ink"]) == (0, "rgb(26, 28, 32)")
    assert min(printed["widths"]) > 300  # none has the width of a chart that nobody has seen
    expect(folded).to_have_count(before)
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(232, 232, 234)"


def test_a_chart_that_is_unfolded_takes_its_place(tab: Page, tmp_path: Path) -> None:
    opened(tab, reported_runs.with_faults(tmp_path / "run-7"))
    chart = tab.locator("details figure").first
    expect(chart).to_be_hidden()
    tab.locator("summary").first.click()
    expect(chart).to_be_visible()
    fills = (
        "one => Math.abs(one.querySelector('.uplot').clientWidth - one.lastChild.clientWidth) < 2"
    )
    expect(chart).to_be_visible()
    tab.wait_for_function(f"({fills})(document.querySelector('details figure'))")


def test_a_report_without_scripts_has_a_table_of_its_curves(
    chromium: Browser, tmp_path: Path
) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        tab = context.new_page()
        opened(tab, reported_runs.with_faults(tmp_path / "run-7"))
        table = tab.get_by_role("region", name="The curves of run-7")
        expect(table.get_by_role("row", name="Reward reward")).to_contain_text("at step 60")
        expect(tab.locator("figure")).to_have_count(0)


def test_a_pipeline_is_one_report_with_its_stages_in_order(tab: Page, tmp_path: Path) -> None:
    opened(tab, reported_runs.cluster(tmp_path / "run-7"))
    rows = tab.get_by_role("region", name="The stages of the pipeline of job-2").get_by_role("row")
    stages = [row.get_by_role("rowheader").inner_text() for row in rows.all()[1:]]
    assert stages == [
        *("Stage sft (job-2)", "Stage rm (job-3)"),
        *("Stage ppo (job-4)", "Stage eval (job-5)"),
    ]
    sft = tab.locator("#job-2")
    expect(sft.get_by_role("img", name="Loss. loss: 2.539 at step 10")).to_be_visible()
    expect(sft.get_by_role("img", name="Held-out accuracy. accuracy: 0.75")).to_be_visible()
    expect(tab.locator("#job-4").get_by_role("img", name="Reward. ")).to_be_visible()
    expect(tab.locator("#job-5")).to_contain_text("failed it did not begin: the disk is full")
    tables = ("The attempts of job-1", "The stages of the pipeline of job-2")
    for name in tables:  # both may scroll
        tab.keyboard.press("Tab")
        expect(tab.locator(":focus")).to_have_attribute("aria-label", name)
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(tab).to_have_url(re.compile("#job-2$"))  # the browser tells it later


def test_a_program_that_tells_no_steps_has_no_wrong_effective_time(
    tab: Page, tmp_path: Path
) -> None:
    opened(tab, reported_runs.tells_nothing(tmp_path / "run-7"))
    expect(tab.get_by_text("no step of the job is known, so that its")).to_be_visible()
    row = tab.get_by_role("row", name="the job, of which no step is known 1 h 0 min")
    expect(row).to_be_visible()
    expect(tab.get_by_text("no reward, loss or accuracy")).to_be_visible()


def test_what_a_log_a_job_or_a_metric_says_stays_text_and_a_secret_is_masked(
    tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cret-of-this-very-run"
    monkeypatch.setenv("MY_TOKEN", secret)
    root = tmp_path / "run-7"
    clock = Clock()
    clock.begins(1)
    clock.steps(1, 1, 2)
    clock.then(9, "failure", 1, failure="unknown", silent_seconds=1.0)
    clock.rows[-1]["sentence"] = f"unknown: {EVIL} {secret}"
    clock.then(1, "engine-replaced", 1)
    clock.rows[-1]["sentence"] = f"{EVIL} {secret}"
    run = reported_runs.written(root, Clock())
    run.journal.write_text('{"kind": "damaged"}\n')
    job = reported_runs.entered(root, "job-1", stage=EVIL, state="failed", sentence=secret)
    reported_runs.written(job, clock, recipe=EVIL, model=EVIL)
    row = {"step": 1, "train/reward": 1.0, "timing/generate": 1.0, f"train/reward_{EVIL}": 1.0}
    RunFiles(job).metrics.write_text(f"{json.dumps(row)}\n")
    asked = opened(tab, run)
    assert tab.title() != "1"
    assert asked == [tab.url]
    assert tab.locator("script").count() == len(html.SCRIPTS) + tab.locator(".curves").count()
    assert tab.locator("img").count() == 0
    assert secret not in tab.content()
    expect(tab.locator("pre")).to_have_text(f"{EVIL} ********")
