"""The page's key in a real browser: where it goes, and what it opens."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, Request, expect

from contract.journal import append_event
from entrypoint.cluster.access import page_link
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head
from tests.support.queued_jobs import works_at_a_queue

pytestmark = pytest.mark.browser
READ_KEY = run_token.read_only(TOKEN)
EVIL = "<img src=x onerror='document.title=1'><script>document.title=1</script>"


def address(head: Head) -> str:
    return f"http://127.0.0.1:{head.port}"


@pytest.mark.parametrize("controls", [False, True])
def test_the_key_of_a_link_is_seen_once(head: Head, tab: Page, controls: bool) -> None:
    """Neither the address, the history, a script nor a later request has it.

    The head, and a proxy before it, get no address with the operator key.
    """
    link = head.link(controls=controls)
    key = link.partition("=")[2]
    requests: list[Request] = []
    tab.on("request", lambda request: requests.append(request))
    tab.goto("about:blank")
    tab.goto(link)
    tab.wait_for_url(f"{address(head)}/")
    expect(tab.get_by_role("heading", level=1)).to_contain_text("head")
    assert tab.evaluate("document.cookie + document.referrer") == ""
    assert tab.evaluate("history.length") == 2
    tab.reload()
    expect(tab.get_by_role("heading", level=1)).to_contain_text("head")
    asked = [
        json.dumps([one.url.partition("#")[0], one.headers.get("referer")]) for one in requests
    ]
    first, *others = asked
    assert (key in first) is not controls
    assert len(others) > 3
    assert [one for one in others if key in one or run_token.read_only(key) in one] == []


@pytest.mark.parametrize("controls", [False, True])
def test_the_link_of_a_job_shows_that_job(head: Head, tab: Page, controls: bool) -> None:
    works_at_a_queue(head, {"warm-up": "finished", "low-rate": "running"})
    key = run_token.for_page(TOKEN) if controls else READ_KEY
    tab.goto(page_link(address(head), key, controls=controls, job="job-1"))
    tab.wait_for_url(f"{address(head)}/#run=job-1")
    expect(tab.locator("#name")).to_have_text("warm-up")


def test_without_a_key_a_form_asks_for_one(head: Head, tab: Page) -> None:
    tab.goto(address(head))
    field = tab.get_by_label("The run's token, or its read-only key")
    expect(field).to_be_focused()
    field.fill("wrong")
    field.press("Enter")
    expect(tab.get_by_role("alert")).to_have_text("That key is not of this run.")
    field.fill(READ_KEY)
    tab.get_by_role("button", name="Show the run").click()
    expect(tab.get_by_role("heading", level=1)).to_contain_text("head")
    assert tab.url == f"{address(head)}/"


def test_what_nodes_say_is_text(head: Head, tab: Page) -> None:
    append_event(head.run.journal, "start", EVIL)
    tab.goto(head.link())
    expect(tab.get_by_text(EVIL)).to_be_visible()
    assert tab.title() != "1"
    assert tab.locator("img").count() == 0
