"""docs/preflight.md says what the checks say."""

from __future__ import annotations

from entrypoint.cluster import differences
from entrypoint.config.check_names import CheckName
from entrypoint.job import collective
from entrypoint.preflight.run import CHECKS
from tests.support.doc_pages import PREFLIGHT, checks, with_checks


def test_the_page_of_checks_is_current() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    page = PREFLIGHT.read_text()
    assert with_checks(page) == page


def test_the_names_that_can_be_skipped_are_those_of_all_checks() -> None:
    every = (*CHECKS, *differences.CHECKS, collective.CHECK)
    assert [check.name for check in every] == list(CheckName)


def test_every_check_is_on_the_page_once() -> None:
    for name in CheckName:
        assert checks().count(f"### `{name}`") == 1
