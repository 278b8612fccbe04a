"""An attempt that begins elsewhere than at its checkpoint is named."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoint.job.failures import resume_check


def event(kind: str, step: int) -> dict[str, Any]:
    return {"kind": kind, "details": {"step": step}}


@pytest.mark.parametrize(
    ("resume_from", "events", "first", "told"),
    [
        (0, [], 1, None),
        (40, [], 43, None),  # no journal of its own; it is looked at now and then
        (40, [], 40, None),  # it says again where it is
        (40, [event("resume", 40), event("step", 41), event("step", 42)], 42, None),
        (40, [event("resume", 40)], 41, None),
        (40, [event("checkpoint-skipped", 40), event("resume", 30), event("step", 31)], 31, None),
        (0, [event("resume", 7), event("step", 8)], 8, None),  # from a directory of its own
        (40, [event("restore", 57), event("resume", 57), event("step", 58)], 58, None),
        (
            40,
            [event("restore", 56), event("resume", 57), event("step", 58)],
            58,
            "it was to go on after step 40, and went on after step 57",
        ),
        (40, [], 1, "it was to go on after step 40, and its first step was step 1"),
        (
            40,
            [event("resume", 0), event("step", 1)],
            1,
            "it was to go on after step 40, and went on after step 0",
        ),
        (
            40,
            [event("resume", 40), event("step", 1)],
            1,
            "it was to go on after step 40, and its first step was step 1",
        ),
        (
            40,
            [event("resume", 40), event("step", 43)],
            43,
            "it was to go on after step 40, and its first step was step 43",
        ),
    ],
)
def test_an_attempt_that_begins_elsewhere_than_at_its_checkpoint_is_named(
    resume_from: int, events: list[dict[str, Any]], first: int, told: str | None
) -> None:
    assert resume_check.mismatch(resume_from, events, first) == told
