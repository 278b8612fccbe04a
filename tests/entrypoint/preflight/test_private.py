"""Owners and modes of what other users of the machine may not reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.preflight.check import Context
from entrypoint.preflight.private import private
from entrypoint.preflight.verdict import Finding, Verdict
from tests.support.other_user import as_nobody


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def found(place: Path) -> Finding:
    given = {"ROLLCALL_RAY_TEMP_DIR": str(place / "ray"), "ROLLCALL_RUN_DIR": str(place / "run")}
    return private(Context(Head(0, 0, "a test"), read_settings(given)))


def test_what_does_not_exist_yet_or_is_this_user_s_alone_passes(place: Path) -> None:
    assert found(place).verdict is Verdict.PASS
    (place / "ray").mkdir(mode=0o700)
    (place / "ray/ray").mkdir()
    (place / "ray/ray").chmod(0o777)  # as Ray leaves it
    assert found(place).verdict is Verdict.PASS


def test_a_directory_that_others_may_enter_fails(place: Path) -> None:
    (place / "ray").mkdir(mode=0o755)
    finding = found(place)
    assert finding.verdict is Verdict.FAIL
    assert f"{place}/ray is open to other users (mode 055)" in finding.evidence
    assert "ROLLCALL_RAY_TEMP_DIR" in finding.remedy


def test_a_directory_of_another_user_fails(place: Path) -> None:
    place.chmod(0o1777)
    assert as_nobody(lambda: (place / "ray").mkdir(mode=0o700)) == ""
    finding = found(place)
    assert (finding.verdict, finding.remedy[:15]) == (Verdict.FAIL, "have it removed")
    assert f"{place}/ray is another user's" in finding.evidence


def test_a_place_in_which_others_may_rename_fails_before_anything_is_made_there(
    place: Path,
) -> None:
    place.chmod(0o777)
    finding = found(place)
    assert finding.verdict is Verdict.FAIL
    assert f"they may rename what is in {place}" in finding.evidence


def test_a_link_fails(place: Path) -> None:
    (place / "elsewhere").mkdir(mode=0o700)
    (place / "ray").symlink_to(place / "elsewhere")
    assert "ray is not a directory" in found(place).evidence
    (place / "ray").unlink()
    (place / "ray").mkdir(mode=0o700)
    (place / "ray/ray").symlink_to(place / "elsewhere")
    assert found(place).evidence == f"{place}/ray/ray is a link"


def test_a_run_directory_and_a_token_that_are_open_are_warnings(place: Path) -> None:
    run = place / "run"
    run.mkdir()
    (run / ".token").touch(mode=0o600)
    assert found(place).verdict is Verdict.PASS
    (run / ".token").chmod(0o640)
    finding = found(place)
    assert finding.verdict is Verdict.WARN
    assert finding.remedy == f"chmod 600 {run}/.token"
    (run / ".token").chmod(0o600)
    run.chmod(0o777)
    assert "every user of the machine may change" in found(place).evidence
    run.chmod(0o1777)
    assert found(place).verdict is Verdict.PASS
    assert os.geteuid() == run.stat().st_uid
