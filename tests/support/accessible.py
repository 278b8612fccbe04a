"""A page is no wider than its window, and axe-core finds no fault in it."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.waiting import eventually

PHONE, DESKTOP = (390, 844), (1280, 900)
LOOKS = ((PHONE, "light"), (DESKTOP, "dark"))
"""A window's size decides what fits, a scheme the colours: one look has both."""
FITS = "document.documentElement.scrollWidth <= innerWidth"


def fits(tab: Page) -> None:
    """Wait until nothing is wider than the window: a busy browser lays out after a resize."""
    eventually(lambda: tab.evaluate(FITS))


def has_no_faults(tab: Page) -> None:
    """Pass if axe-core finds nothing."""
    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


def is_for_everyone(tab: Page) -> None:
    """Pass if the page fits and is free of faults: on a light phone and a dark desktop."""
    for (width, height), scheme in LOOKS:
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        fits(tab)
        has_no_faults(tab)
