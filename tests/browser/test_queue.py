"""The page of a head that works at a queue: the run of now, the list of all, and one of them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from entrypoint.cluster.server import HeadPhase
from tests.support.accessible import is_for_everyone
from tests.support.control import Head
from tests.support.queued_jobs import works_at_a_queue

pytestmark = pytest.mark.browser
QUEUE = {
    "warm-up": "finished",
    "high-rate": "failed",
    "low-rate": "running",
    "evaluation": "queued",
}


def opened(head: Head, tab: Page) -> None:
    tab.goto(head.link(controls=True))


def test_the_jobs_of_the_queue_are_listed_below_the_run_of_now(head: Head, tab: Page) -> None:
    works_at_a_queue(head, QUEUE)
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Training")
    expect(tab.locator("#name")).to_have_text("low-rate (job-3) on head")
    rows = tab.locator("#run-rows tr")
    expect(rows).to_have_count(4)
    words = {"warm-up": "Finished", "high-rate": "Failed", "low-rate": "Running"}
    for name, word in {**words, "evaluation": "Queued"}.items():
        expect(rows.filter(has_text=name)).to_contain_text(word)
    is_for_everyone(tab)


def test_curves_of_jobs_lie_over_each_other_while_another_one_runs(head: Head, tab: Page) -> None:
    works_at_a_queue(head, QUEUE)
    opened(head, tab)
    tab.get_by_label("Curves of warm-up").check()
    tab.get_by_label("Curves of low-rate").check()
    together = tab.locator("#together").get_by_role("img", name="Reward: reward")
    expect(together).to_have_accessible_name(
        re.compile("warm-up: .*low-rate: |low-rate: .*warm-up: ")
    )
    is_for_everyone(tab)


def test_a_job_that_is_over_has_a_page_of_its_own_and_the_way_back(head: Head, tab: Page) -> None:
    works_at_a_queue(head, QUEUE)
    opened(head, tab)
    tab.get_by_role("link", name="high-rate").click()
    expect(tab.locator("#state")).to_have_text("Failed")
    expect(tab.locator("#name")).to_have_text("high-rate")
    expect(tab.locator("#controls")).to_be_hidden()
    expect(tab.locator("#of-nodes")).to_be_hidden()
    tab.get_by_role("link", name="All runs").click()
    expect(tab.locator("#name")).to_have_text("low-rate (job-3) on head")
    expect(tab.locator("#run-rows tr")).to_have_count(4)
    expect(tab.locator("#of-nodes")).to_be_visible()


def test_a_head_without_a_job_says_how_to_submit_one(head: Head, tab: Page) -> None:
    works_at_a_queue(head, {"warm-up": "finished"})
    head.control._registry.expected = 0
    head.control.phase = HeadPhase.AWAITING_JOB
    opened(head, tab)
    expect(tab.locator("#state")).to_have_text("Waiting for a job (rollcall submit)")
    expect(tab.locator("#verdict")).to_have_text("The cluster is ready, and waits for jobs.")
    expect(tab.locator("#bring")).to_contain_text("rollcall submit -- COMMAND")
    expect(tab.locator("#of-samples")).to_be_hidden()
    expect(tab.locator("#facts")).not_to_contain_text("PPO")
    models = [{"model": name, "model_path": f"/m/{name}"} for name in ("hf", "Qwen")]
    assert tab.evaluate("those => those.map(modelOf)", models) == ["/m/hf", "Qwen"]
    expect(tab.locator("#run-rows tr")).to_have_count(1)
