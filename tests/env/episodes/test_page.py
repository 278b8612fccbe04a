"""docs/environments.md names what the methods of an environment get."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from env.episodes.types import Episode, Reply, ReplyStop, Task, ToolCall
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "environments.md").read_text()


def table_of(kind: type) -> str:
    _, _, rest = PAGE.partition(f"| field of `{kind.__name__}` | value |\n|---|---|\n")
    return rest.partition("\n\n")[0]


@pytest.mark.parametrize("kind", [Task, Reply, Episode])
def test_each_field_has_its_row_in_the_table_and_no_row_another(kind: Any) -> None:
    first = [row.split("|")[1] for row in table_of(kind).splitlines()]
    named = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(one.name for one in fields(kind))


def test_calls_and_stops_are_named_in_full() -> None:
    for name in (*(one.name for one in fields(ToolCall)), *ReplyStop):
        assert f"`{name}`" in table_of(Reply)
