"""What a reader sets for charts, smoothing and folds, and the flags in which runs differ."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from contract.run_dir import RunFiles
from entrypoint.cluster.kept_runs import KeptRunsServer
from entrypoint.commands import report
from tests.support import reported_runs
from tests.support.accessible import DESKTOP, PHONE, is_for_everyone

pytestmark = pytest.mark.browser
OF_PLOT = "charts.drawn.get('KL from the reference, nats').plot"


def began(run: RunFiles, **row: Any) -> RunFiles:
    """Write what the run was begun with."""
    run.run.write_text(json.dumps({"recipe": "builtin", "model": "tiny-7b", **row}))
    return run


def kl(tab: Page) -> Locator:
    return tab.locator("figure", has=tab.get_by_text("KL from the reference, nats", exact=True))


def as_tensorboard(values: list[float], weight: float) -> list[float]:
    """What TensorBoard draws of the values."""
    last, smoothed = 0.0, []
    for number, value in enumerate(values, 1):
        last = last * weight + (1 - weight) * value
        smoothed.append(last / (1 - weight**number))
    return smoothed


def test_curves_are_smoothed_as_by_tensorboard_over_gaps_with_the_raw_ones_behind(
    tab: Page, tmp_path: Path
) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    values = [row["train/kl"] for row in reported_runs.learns(60) if "train/kl" in row]
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        slider = tab.get_by_label("Smoothing").first
        expect(slider).to_have_value("0")
        expect(kl(tab).locator(".u-legend")).to_have_text(re.compile(r"^step60KL0\.019$"))
        slider.fill("0.6")
        expect(tab.locator(".smoothing output").first).to_have_text("0.60")
        said = f"{as_tensorboard(values, 0.6)[-1]:.4g} smoothed, {values[-1]:.4g} raw"
        expect(kl(tab)).to_contain_text(said)
        expect(kl(tab).get_by_role("img")).to_have_accessible_name(
            re.compile(rf"smoothed {as_tensorboard(values, 0.6)[-1]:.4g}$")
        )
        _, raw, drawn = tab.evaluate(f"{OF_PLOT}.data")
        assert raw == pytest.approx(values, rel=1e-4)
        assert drawn == pytest.approx(as_tensorboard(raw, 0.6))
        strokes = tab.evaluate(f"{OF_PLOT}.series.slice(1).map(one => one.stroke())")
        assert strokes[0] == strokes[1] + "59"  # the raw one, which is drawn first
        assert tab.evaluate("smoothed([1, null, 4, 4], 0.5)") == [1, None, 3, pytest.approx(25 / 7)]
        slider.fill("0")
        expect(kl(tab).locator(".u-legend")).to_have_text(re.compile(r"^step60KL0\.019$"))


def test_smoothing_stays_in_the_address_of_the_list_and_of_a_run(tab: Page, tmp_path: Path) -> None:
    reported_runs.with_faults(tmp_path / "a")
    reported_runs.with_faults(tmp_path / "b")
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        for name in ("a", "b"):
            tab.get_by_label(f"Curves of {name}").check()
        slider = tab.get_by_label("Smoothing").last
        slider.focus()
        for _ in range(3):
            tab.keyboard.press("ArrowRight")
        expect(tab).to_have_url(re.compile("#.*smoothing=0.03"))
        legend = tab.locator("#together .u-legend").first
        expect(legend).to_have_text(re.compile("( smoothed, .* raw.*){2}"))
        is_for_everyone(tab)
        tab.reload()
        expect(slider).to_have_value("0.03")
        expect(legend).to_have_text(re.compile("( smoothed, .* raw.*){2}"))
        tab.get_by_role("link", name="a", exact=True).click()
        expect(kl(tab)).to_contain_text(" smoothed, ")
        expect(tab).to_have_url(re.compile("#.*smoothing=0.03"))
        tab.get_by_role("link", name="All runs").click()
        expect(legend).to_have_text(re.compile(" smoothed, "))
        tab.evaluate("location.hash = 'smoothing=nonsense'")
        expect(slider).to_have_value("0")


def test_a_smoothed_curve_and_its_raw_one_are_hidden_together(tab: Page, tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        expect(tab.locator("#charts figure").first).to_be_visible()
        tab.get_by_label("Smoothing").first.fill("0.5")
        kl(tab).locator(".u-series").last.locator("th").click()
        assert tab.evaluate(f"{OF_PLOT}.series.slice(1).map(one => one.show)") == [False, False]


def test_a_group_of_charts_folds_by_the_keyboard_and_stays_so(tab: Page, tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    tab.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        groups = tab.locator("#charts > details")
        expect(groups).to_have_count(4)
        expect(tab.locator("#charts > details[open]")).to_have_count(4)
        policy = groups.filter(has=tab.get_by_role("heading", name="Policy"))
        policy.locator("summary").focus()
        tab.keyboard.press("Enter")
        expect(policy.locator("figure").first).to_be_hidden()
        is_for_everyone(tab)
        tab.reload()
        expect(tab.locator("#charts > details[open]")).to_have_count(3)
        policy.locator("summary").focus()
        tab.keyboard.press("Space")
        figure = policy.locator("figure").first
        expect(figure).to_be_visible()
        fills = "one => one.querySelector('.uplot').clientWidth > one.clientWidth / 2"
        tab.wait_for_function(fills, arg=figure.element_handle())


def test_a_phone_has_the_first_group_of_charts_open_alone(tab: Page, tmp_path: Path) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    tab.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        summaries = tab.locator("#charts summary")
        expect(summaries).to_have_text(["Learning", "Policy", "Samples", "Speed"])
        expect(tab.locator("#charts details[open] summary")).to_have_text(["Learning"])
        summaries.last.click()
        is_for_everyone(tab)
        tab.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        tab.reload()
        expect(tab.locator("#charts details[open] summary")).to_have_text(["Learning", "Speed"])


def test_runs_over_each_other_have_a_table_of_the_flags_that_differ(
    tab: Page, tmp_path: Path
) -> None:
    same = {"seed": "3", "constructor": "x"}
    began(reported_runs.with_faults(tmp_path / "low"), flags={**same, "lr": "1e-7", "ema": ""})
    began(reported_runs.with_faults(tmp_path / "high"), flags={**same, "lr": "1e-5", "clip": "<b>"})
    began(reported_runs.with_faults(tmp_path / "old"))
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        table = tab.get_by_role("region", name="Flags that differ")
        tab.get_by_label("Curves of low").check()
        expect(tab.locator("#together figure").first).to_be_visible()
        expect(table).to_be_hidden()
        tab.get_by_label("Curves of high").check()
        expect(table.get_by_role("row")).to_have_count(4)
        final = tab.get_by_role("region", name="Final values")
        expect(final.get_by_role("row").filter(has_text="reward, last")).to_be_visible()
        names = [text.strip() for text in table.locator("thead th").all_inner_texts()[1:]]
        assert sorted(names) == ["high", "low"]
        shown = {
            row.get_by_role("rowheader").inner_text(): dict(
                zip(names, row.get_by_role("cell").all_inner_texts(), strict=True)
            )
            for row in table.locator("tbody").get_by_role("row").all()
        }
        assert shown == {
            "clip": {"low": "default", "high": "<b>"},
            "ema": {"low": "no value", "high": "default"},
            "lr": {"low": "1e-7", "high": "1e-5"},
        }
        colour = "one => getComputedStyle(one).backgroundColor"
        for column, name in enumerate(names, 1):
            own = tab.get_by_label(f"Curves of {name}").locator("xpath=../span")
            line = table.locator("thead th").nth(column).locator(".line")
            assert line.evaluate(colour) == own.evaluate(colour)
        is_for_everyone(tab)
        tab.get_by_label("Curves of old").check()  # of a version that kept no flags
        expect(table.locator("thead th")).to_have_count(4)
        expect(table.get_by_role("row")).to_have_count(4)
        expect(table.get_by_role("cell", name="unknown")).to_have_count(3)


def test_the_same_flags_are_said_to_be_the_same(tab: Page, tmp_path: Path) -> None:
    for name in ("a", "b"):
        began(reported_runs.with_faults(tmp_path / name), flags={"seed": "3"})
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        for name in ("a", "b"):
            tab.get_by_label(f"Curves of {name}").check()
        expect(tab.get_by_text("None: these runs began with the same flags.")).to_be_visible()
        expect(tab.get_by_role("region", name="Flags that differ")).to_be_hidden()


def test_one_slider_smooths_all_curves_of_a_report(tab: Page, tmp_path: Path) -> None:
    run, page = reported_runs.cluster(tmp_path / "run-7"), tmp_path / "report.html"
    assert report.main([str(run.root), "--html", str(page)]) == 0
    tab.goto(page.as_uri())
    sliders = tab.get_by_label("Smoothing")
    assert sliders.count() > 1
    sliders.first.fill("0.9")
    expect(sliders.last).to_have_value("0.9")
    charts = tab.locator("figure:visible")
    expect(charts.filter(has_text=" smoothed, ")).to_have_count(charts.count())
    is_for_everyone(tab)
