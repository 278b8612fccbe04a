"""Pure: where an attempt is to begin, and whether it goes on where it was to go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrypoint.config.settings import Settings


def fingerprint(settings: Settings) -> str:
    """Of the command."""
    command = [settings.recipe, *settings.job]
    return hashlib.sha256(json.dumps(command).encode()).hexdigest()[:16]


def has_begun(events: Iterable[Mapping[str, Any]], command: str) -> bool:
    """Whether the last attempt that told where it begins is one of `command`, a fingerprint.

    How a command is to begin, anew or from a step that it names, is done then: after a crash, or
    under another head, it goes on from its newest step.
    """
    commands: dict[int | None, str | None] = {}
    last = None
    for event in events:
        if event["kind"] == "attempt":
            commands[event["attempt"]] = event["details"].get("command")
        elif event["kind"] == "resume":
            last = commands.get(event["attempt"])
    return last == command


def mismatch(
    resume_from: int, events: Iterable[Mapping[str, Any]], first_seen_step: int
) -> str | None:
    """In a sentence, how an attempt began elsewhere than at its checkpoint; None where it did not.

    `events`: the attempt's own; `first_seen_step`: the first new step in its progress file. A
    trainer that found the newest checkpoint broken, and said so, may begin before it; one that
    found something newer, and said so, after it: a snapshot that the nodes hold in memory.
    """
    resumed = _steps(events := list(events), "resume")
    start = resumed[0] if resumed else resume_from
    fell_back = start < resume_from and _steps(events, "checkpoint-skipped")
    ahead = start > resume_from and (not resume_from or start in _steps(events, "restore"))
    if start != resume_from and not (fell_back or ahead):
        return f"it was to go on after step {resume_from}, and went on after step {start}"
    steps = _steps(events, "step")
    first = steps[0] if steps else first_seen_step
    # Without events, progress may be told again before the first new step.
    if first < start or (steps and first != start + 1):
        return f"it was to go on after step {start}, and its first step was step {first}"
    return None


def _steps(events: Iterable[Mapping[str, Any]], kind: str) -> list[int]:
    return [event["details"]["step"] for event in events if event["kind"] == kind]
