"""A headless Chromium, and a tab that fails its test if the page's code or its policy complains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.support.control import head

__all__ = ["head"]

expect.set_options(timeout=30_000)  # on a busy machine, too


# No longer: Playwright's loop would fail each later `asyncio.run` of the process.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        is_answer = message.text.startswith("Failed to load resource")  # no fault of the page
        if message.type in ("error", "warning") and not is_answer:
            complaints.append(message.text)

    with chromium.new_context() as context:
        tab = context.new_page()
        tab.on("console", heard)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        yield tab
    assert complaints == []
