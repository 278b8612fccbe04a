"""Pure: does an attempt resume where it has to?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from entrypoint.job.command_identity import is_same


def has_begun(events: Iterable[Mapping[str, Any]], command: str) -> bool:
    """Return whether the last attempt that reported its start ran `command`, a fingerprint.

    If so, the command's own start (at the beginning, or at a step that it names) has happened.
    After a crash, or under another head, it resumes from its newest step.
    """
    commands: dict[int | None, str | None] = {}
    last = None
    for event in events:
        if event["kind"] == "attempt":
            commands[event["attempt"]] = event["details"].get("command")
        elif event["kind"] == "resume":
            last = commands.get(event["attempt"])
    return is_same(last, command)


def mismatch(
    resume_from: int, events: Iterable[Mapping[str, Any]], first_seen_step: int
) -> str | None:
    """Return a sentence if an attempt did not begin at its checkpoint.

    `events`: the attempt's own; `first_seen_step`: the first new step in its progress file.

    A trainer may begin earlier if it reports that the newest checkpoint is corrupt, and later if it
    reports a newer state, such as a snapshot in the memory of the nodes.
    """
    resumed = _steps(events := list(events), "resume")
    start = resumed[0] if resumed else resume_from
    fell_back = start < resume_from and _steps(events, "checkpoint-skipped")
    ahead = start > resume_from and (not resume_from or start in _steps(events, "restore"))
    if start != resume_from and not (fell_back or ahead):
        return f"it was to go on after step {resume_from}, and went on after step {start}"
    steps = _steps(events, "step")
    first = steps[0] if steps else first_seen_step
    # A trainer without events may report its old progress again before the first new step.
    if first < start or (steps and first != start + 1):
        return f"it was to go on after step {start}, and its first step was step {first}"
    return None


def _steps(events: Iterable[Mapping[str, Any]], kind: str) -> list[int]:
    return [event["details"]["step"] for event in events if event["kind"] == kind]
