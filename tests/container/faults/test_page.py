"""docs/faults.md and README show the table and its results as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.container.faults import page
from tests.container.faults.page import GROUPS, OF_RECIPES, PAGE, README, renewed


@pytest.mark.parametrize(("path", "table"), [(PAGE, page.markdown()), (README, page.summary())])
def test_a_page_has_its_faults_with_their_newest_results(path: Path, table: str) -> None:
    assert path.read_text() == renewed(path.read_text(), table), (
        "python -m tests.container.faults.page renews it"
    )


def test_no_two_faults_have_one_name() -> None:
    names = [fault.name for faults in (*GROUPS.values(), OF_RECIPES) for fault in faults]
    assert len(set(names)) == len(names)
