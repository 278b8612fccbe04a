"""docs/security-model.md names attacks and tests that exist; each attack can find something."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.planted_faults import Fault
from tests.support.repository import ROOT

TABLE = (ROOT / "docs/security-model.md").read_text().partition("<!-- boundaries -->")[2]
ATTACK = re.compile(r"^@by\(Boundary\.\w+\)\ndef (\w+)", re.MULTILINE)
ATTACKS = {
    name
    for file in (ROOT / "tests/cluster/attack").glob("*.py")
    for name in ATTACK.findall(file.read_text())
}
OF_NOTHING = {"whole"}
"""Looks at what the others have left."""
UNPROTECTED = tomllib.loads((ROOT / "tests/data/unprotected.toml").read_text())["fault"]


def test_the_page_names_every_attack_and_tests_that_exist() -> None:
    last_column = (row.rstrip(" |").rpartition(" | ")[2] for row in TABLE.split("\n"))
    named = {name for cell in last_column for name in re.findall(r"`(\w+)`", cell)}
    tests = {name for name in named if name.startswith("test_")}
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named - tests == ATTACKS - OF_NOTHING
    assert {name for name in tests if not re.search(rf"^def {name}\(", sources, re.M)} == set()


def test_every_attack_has_a_protection_that_can_be_taken_off() -> None:
    assert {attack for row in UNPROTECTED for attack in row["attacks"]} == ATTACKS - OF_NOTHING


@pytest.mark.parametrize("row", UNPROTECTED, ids=lambda row: row["old"][:40])
def test_a_protection_that_is_taken_off_stands_once_in_its_package(row: dict[str, str]) -> None:
    assert Fault(row["package"], row["old"], row["new"]).file(ROOT), row["old"]
