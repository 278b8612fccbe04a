"""docs/preflight.md says what the checks say."""

from __future__ import annotations

from entrypoint.cluster import differences
from entrypoint.commands.preflight_page import markdown, renewed
from entrypoint.config.check_names import CheckName
from entrypoint.job import collective
from entrypoint.preflight.run import CHECKS
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "preflight.md"


def test_the_page_of_checks_is_current() -> None:
    """Renewed by `python -m entrypoint.commands.preflight_page docs/preflight.md`."""
    page = PAGE.read_text()
    assert renewed(page) == page


def test_the_names_that_can_be_skipped_are_those_of_all_checks() -> None:
    checks = (*CHECKS, *differences.CHECKS, collective.CHECK)
    assert [check.name for check in checks] == list(CheckName)


def test_every_check_is_on_the_page_once() -> None:
    for name in CheckName:
        assert markdown().count(f"### `{name}`") == 1
