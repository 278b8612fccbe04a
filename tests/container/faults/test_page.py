"""docs/faults.md shows the table and its results as they are."""

from __future__ import annotations

from tests.container.faults.page import GROUPS, PAGE, renewed


def test_the_page_has_every_fault_with_its_newest_result() -> None:
    assert PAGE.read_text() == renewed(PAGE.read_text()), (
        "python -m tests.container.faults.page renews it"
    )


def test_no_two_faults_have_one_name() -> None:
    names = [fault.name for faults in GROUPS.values() for fault in faults]
    assert len(set(names)) == len(names)
