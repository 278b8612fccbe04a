"""docs/preflight.md says what the checks say."""

from __future__ import annotations

from pathlib import Path

from entrypoint.cluster import differences
from entrypoint.commands.preflight_page import markdown, renewed
from entrypoint.preflight.run import CHECKS

PAGE = Path(__file__).parent.parent.parent / "docs" / "preflight.md"


def test_the_page_of_checks_is_current() -> None:
    """Renewed by `python -m entrypoint.commands.preflight_page docs/preflight.md`."""
    page = PAGE.read_text()
    assert renewed(page) == page


def test_every_check_is_on_the_page_once() -> None:
    for name in (*(check.name for check in CHECKS), *(check.name for check in differences.CHECKS)):
        assert markdown().count(f"### `{name}`") == 1
