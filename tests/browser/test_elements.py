"""Parts of the page that no state alone shows: what needs attention, the roll, form and dialog."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from contract.progress import Progress
from entrypoint.cluster.server import HeadPhase
from tests.support.accessible import is_for_everyone
from tests.support.broken_words import ROWS_OF_WORDS
from tests.support.control import Head, node_info

pytestmark = pytest.mark.browser


def opened(head: Head, tab: Page) -> None:
    tab.goto(head.link(controls=True))
    expect(tab.locator("#name")).to_be_visible()  # of the page behind the link's key


def test_idle_gpus_slow_rewards_late_steps_and_refused_nodes_need_attention(
    head: Head, tab: Page
) -> None:
    registry = head.control._registry
    registry.check_in(node_info("gpu-2", python="3.9.0"), "")
    row = {"step": 5, "train/reward": 0.5, "timing/reward": 8.0, "timing/step": 10.0}
    head.run.metrics.write_text(json.dumps(row) + "\n")
    old = "2026-01-01T00:00:00+00:00"
    progress = Progress(step=5, total_steps=10, step_seconds=10.0, at=old)
    progress.write(head.run.progress)
    head.control.phase = HeadPhase.TRAINING
    head.control.idle = "4 GPUs of gpu-1 have no work"
    opened(head, tab)
    attention = tab.get_by_role("region", name="Needs attention")
    for sentence in (
        "4 GPUs of gpu-1 have no work",
        "rewards take 80 % of a step: the GPUs wait for the reward server",
        "the last one took 10 s",
        "gpu-2 was refused: ",
    ):
        expect(attention).to_contain_text(sentence)


def test_the_roll_has_the_head_the_gpus_and_the_versions(head: Head, tab: Page) -> None:
    has = {"gpus": 8.0, "cpus": 64.0, "memory_bytes": 512.0 * 2**30}
    registry = head.control._registry
    registry.me = replace(registry.me, inventory=has)
    info = node_info("gpu-1", gpu="NVIDIA H100 80GB HBM3", vllm="0.29.0", rocm="")
    registry.check_in(replace(info, joined=True, inventory=has), "")
    opened(head, tab)
    rows = tab.locator("#nodes tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("the head")
    expect(rows.first).to_contain_text("8 GPUs, 64 CPUs, 512 GiB")
    expect(rows.last).to_contain_text("8 GPUs (NVIDIA H100 80GB HBM3), 64 CPUs, 512 GiB")
    expect(rows.last).to_contain_text("python 3.12.4")
    expect(rows.last).to_contain_text("vllm 0.29.0")
    expect(rows.last).not_to_contain_text("rocm")
    expect(rows.last).to_contain_text("passed")


def test_no_word_of_the_roll_is_broken(head: Head, tab: Page) -> None:
    said = {"host.nofile": "WARN host.nofile: open files: 20000 → " + "raise them " * 12}
    registry = head.control._registry
    registry.me = replace(registry.me, warnings=tuple(said), findings=said)
    registry.check_in(replace(node_info("worker-1"), joined=True), "")
    registry.poll_opened("worker-1")
    tab.set_viewport_size({"width": 1280, "height": 900})
    opened(head, tab)
    cells = tab.locator("#nodes td:nth-child(2), #of-nodes thead th")
    expect(cells).to_have_count(7)
    assert set(cells.evaluate_all(ROWS_OF_WORDS)) == {1}


def test_a_chart_says_its_newest_values_and_shows_a_single_step(head: Head, tab: Page) -> None:
    row = {"step": 1, "train/reward": 0.5, "memory/critic_load_gb": 0.25}
    head.run.metrics.write_text(json.dumps(row) + "\n")
    opened(head, tab)
    chart = tab.locator("figure", has_text="Reward")
    expect(chart.locator(".u-legend")).to_have_text("step1reward0.5")
    expect(tab.locator("figure", has_text="Memory")).to_contain_text("critic load0.25")
    shows = """(() => {
      const {plot} = charts.drawn.get("Reward");
      return plot.series[1].points.show(plot, 1);
    })()"""
    assert tab.evaluate(shows)
    with head.run.metrics.open("a") as metrics:
        metrics.write(json.dumps({"step": 2, "train/reward": 0.75}) + "\n")
    expect(chart.locator(".u-legend")).to_have_text("step2reward0.75")
    assert not tab.evaluate(shows)


def test_a_chart_says_its_newest_values_from_the_first_on(head: Head, tab: Page) -> None:
    head.run.metrics.write_text(json.dumps({"step": 1, "train/reward": 0.5}) + "\n")
    tab.route("**/v1/gpus*", lambda route: route.abort())  # with its answer all is drawn again
    tab.route("**/v1/curves?after=1*", lambda route: route.abort())
    opened(head, tab)
    legend = tab.locator("figure", has_text="Reward").locator(".u-legend")
    expect(legend).to_have_text("step1reward0.5")


def test_the_form_for_the_key_is_for_everyone(head: Head, tab: Page) -> None:
    tab.goto(f"http://127.0.0.1:{head.port}")
    expect(tab.get_by_role("textbox")).to_be_focused()  # comes after the page's load event
    tab.keyboard.type("wrong")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("alert")).to_be_visible()
    is_for_everyone(tab)


def test_the_stop_is_confirmed_or_not_by_the_keyboard_alone(head: Head, tab: Page) -> None:
    head.control.phase = HeadPhase.TRAINING
    opened(head, tab)
    stop, dialog = tab.get_by_role("button", name="Save and stop…"), tab.get_by_role("dialog")
    expect(stop).to_be_visible()
    stop.focus()
    tab.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    is_for_everyone(tab)
    tab.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    tab.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Go on training")).to_be_focused()
    tab.keyboard.press("Tab")
    with tab.expect_response("**/v1/stop"):
        tab.keyboard.press("Enter")
    assert head.heard.stops == ["asked over HTTP"]


def test_small_numbers_keep_their_digits_and_the_ticks_of_an_axis_differ(
    head: Head, tab: Page
) -> None:
    opened(head, tab)
    assert tab.evaluate(
        "[5e-7, -1e-17, 0, -0, 0.0123456, -2.5, 123456].map(one => number(one))"
    ) == [
        "5e-7",
        "0",
        "0",
        "0",
        "0.01235",
        "-2.5",
        "123,456",
    ]
    for values, step in (("[0, 2.5e-7, 5e-7]", 2.5e-7), ("[5e-4, 1e-3, 1.5e-3, 2e-3]", 5e-4)):
        said = tab.evaluate(f"ticks({values}, {step})")
        assert len(set(said)) == len(said)
        assert [float(one) for one in said] == json.loads(values)


def test_a_chart_of_zeros_has_an_axis_and_curves_on_each_other_are_both_seen(
    head: Head, tab: Page
) -> None:
    zeros = {"train/ppo_clip_ratio": 0.0, "train/is_filter_ratio": 0.0}
    rows = [{"step": step, **zeros, "train/reward": step / 9} for step in range(1, 9)]
    head.run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened(head, tab)
    chart = tab.locator("figure", has_text="Clipped tokens, share")
    expect(chart.locator(".u-legend")).to_contain_text("clipped by PPO0")
    drawn = """(() => {
      const {plot} = charts.drawn.get("Clipped tokens, share"), {min, max} = plot.scales.y;
      return [min, max, ...plot.series.slice(1).map(one => one.dash ?? null)];
    })()"""
    assert tab.evaluate(drawn) == [-0.05, 1.05, None, [10, 10]]
    lines = "[[0, 0, 1], [0, 0.001, 1], [3, 2, 1], [0, null, 1]]"
    assert tab.evaluate(f"piled({lines})") == [[0, 3], [1, 3], [0, 1], [2, 3]]
    assert tab.evaluate("rangeOf(null, null)") == [None, None]
    assert tab.evaluate("rangeOf(-1e-18, 6.9e-18)") == [-0.05, 1.05]


def test_samples_that_nobody_can_read_any_more_are_said_to_be_in_the_run_directory(
    head: Head, tab: Page
) -> None:
    opened(head, tab)
    expect(tab.locator("#state")).not_to_have_text("Loading")
    head.control.__exit__()
    tab.get_by_text("Some samples of the newest steps").click()
    expect(tab.locator("#no-rows")).to_contain_text("rollcall open RUN shows them")


def test_a_phone_has_links_to_the_parts_that_are_below_the_charts(head: Head, tab: Page) -> None:
    tab.set_viewport_size({"width": 390, "height": 800})
    opened(head, tab)
    jump = tab.get_by_role("navigation").get_by_role("button", name="Logs")
    jump.click()
    expect(tab.get_by_role("heading", name="Logs")).to_be_focused()
    expect(tab.get_by_role("heading", name="Logs")).to_be_in_viewport()
    is_for_everyone(tab)
