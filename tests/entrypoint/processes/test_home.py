"""Programs that a node starts have a home in which they can write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.other_user import as_nobody
from tests.support.repository import ROOT

SAYS = "import os; print(os.environ.get('HOME'), os.access(os.environ['HOME'], os.W_OK))"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory in which this user alone may write."""
    tmp_path.chmod(0o700)
    return tmp_path


def home_of_a_program(place: Path, **given: str) -> str:
    """What a program says that `rollcall` starts with these variables."""
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint", sys.executable, "-c", SAYS],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(place), "PYTHONPATH": str(ROOT), **given},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("given", [{}, {"HOME": ""}, {"HOME": "/nonexistent"}])
def test_a_user_without_a_home_gets_one_that_is_private(place: Path, given: dict[str, str]) -> None:
    made = place / f"rollcall-{os.geteuid()}" / "home"
    assert home_of_a_program(place, **given) == f"{made} True"
    assert made.stat().st_mode & 0o777 == 0o700


def test_a_home_stays(place: Path) -> None:
    (own := place / "own").mkdir()
    assert home_of_a_program(place, HOME=str(own)) == f"{own} True"
    assert [path.name for path in place.iterdir()] == ["own"]


def test_a_home_that_others_own_stays_as_it_may_have_keys_and_a_bare_root_does_not(
    place: Path,
) -> None:
    place.chmod(0o755)

    def look() -> None:
        from entrypoint.processes import home

        os.environ["HOME"] = "/usr"
        home.give(Path("/tmp/never-made"))
        assert os.environ["HOME"] == "/usr"
        os.environ["HOME"] = "/"
        given = Path(f"/tmp/rollcall-home-of-{os.getpid()}")
        home.give(given)
        assert os.environ["HOME"] == f"{given}/home"
        (given / "home").rmdir()
        given.rmdir()

    assert as_nobody(look) == ""
