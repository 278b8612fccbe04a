"""The lines of a log that `--since` and `-n` leave."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from entrypoint.commands.arguments import moment
from entrypoint.commands.log_part import Fold, Part, time_of, without_rays

LOG = """\
2026-11-23 17:59:59+0000 gn1 early
2026-11-23 18:00:00+0000 gn1 late
  a line that goes on
2026-11-23 19:00:00+0100 gn1 as late
2026-11-23 20:00:00+0000 gn1 last
"""
SIX = datetime(2026, 11, 23, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "hour"),
    [
        ("2026-11-23 18:00:00+0000 gn1 x", 18),
        ("2026-11-23T18:00:00.123Z x", 18),
        ("2026-11-23 18:00:00,123+0100 x", 17),
        ("2026-11-23 18:00:00 +00:00 x", 18),
        ("18:00:00 gn1 an older log", None),
        ("2026-13-40 18:00:00+0000 x", None),
        ("x 2026-11-23 18:00:00+0000", None),
        ("", None),
    ],
)
def test_a_line_begins_with_its_time_or_has_none(line: str, hour: int | None) -> None:
    at = time_of(line)
    assert (at and at.astimezone(UTC).hour) == hour


def test_since_leaves_the_lines_from_a_time_on_and_those_that_belong_to_them() -> None:
    assert Part(since=SIX).of(LOG) == LOG.splitlines(keepends=True)[1:]
    assert Part(since=datetime(2027, 1, 1, tzinfo=UTC)).of(LOG) == []
    assert Part(since=SIX).of("no times\nat all\n") == ["no times\n", "at all\n"]


def test_lines_are_counted_from_the_end_and_after_since() -> None:
    assert Part(lines=1).of(LOG) == ["2026-11-23 20:00:00+0000 gn1 last\n"]
    assert len(Part(lines=3, since=SIX).of(LOG)) == 3
    assert Part(lines=0).of(LOG) == []
    assert len(Part(lines=99).of(LOG)) == 5
    assert "".join(Part().of("a\u2028b\rc\nd")) == "a\u2028b\rc\nd"


def test_a_moment_is_a_while_ago_or_a_time() -> None:
    ago = (datetime.now(UTC) - moment("10m")).total_seconds()
    assert 599 < ago < 660
    assert moment("2026-11-23T18:00+00:00") == SIX
    assert moment("2026-11-23").tzinfo is not None  # of this machine


RAYS = (
    "2026-11-29 14:54:37,148\tINFO job_manager.py:587 -- Runtime env is setting up.\n"
    "Running entrypoint for job rollcall-1: cd /job && exec python train.py\n"
    "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py:2051: FutureWarning: Tip: In\n"
    "  warnings.warn(\n"
)
SAID = "Ray's own lines: 4 (rollcall logs --all shows them)\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{RAYS}Training starts.\n", f"{SAID}Training starts.\n"),
        (f"{RAYS}no end", f"{SAID}no end"),
        (RAYS, SAID),
        ("", ""),
        (f"mine\n{RAYS}", f"mine\n{RAYS}"),
        ("2026-11-29 12:26:56 INFO done\n", "2026-11-29 12:26:56 INFO done\n"),
    ],
)
def test_rays_own_lines_at_the_beginning_are_counted(text: str, shown: str) -> None:
    assert without_rays(text) == shown
    for size in (1, 7, 100):
        fold = Fold()
        pieces = [fold.read(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join([*pieces, fold.close()]) == shown
