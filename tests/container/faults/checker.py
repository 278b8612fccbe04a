"""Pure: what a run has left behind → what is wrong with it, a sentence each.

Asked after every fault: whatever was done to the run, its journal, its progress and its checkpoints
must tell of one history without a hole, a repetition or a second head.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.manifest import checkpoint_path, fault_of, steps_on_disk
from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.run.failure_classes import FailureClass

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """A checkpoint that was broken on purpose."""

    step: int
    at: str
    """When: a timestamp as the journal has them."""


def faults(
    run: RunFiles, *, max_restarts: int, damages: Sequence[Damage] = (), secrets: Sequence[str] = ()
) -> list[str]:
    """All that is wrong with a run that is at rest, or between two of its steps."""
    shown = Progress.read(run.progress)  # before the journal, which then holds its step
    written_down = all_events(run.journal)
    events = in_force(written_down)
    return [
        *heads(written_down),
        *steps(events),
        *endings(events),
        *budget(events, max_restarts),
        *loaded(events, damages),
        *progress(events, shown),
        *on_disk(run.checkpoints, events, damages),
        *told(written(run), secrets),
    ]


def all_events(journal: Path) -> list[Event]:
    """Every whole line that is an event, also those of an older head."""
    events: list[Event] = []
    for line in journal.read_bytes().split(b"\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            events.append(event)
    return events


def in_force(events: Iterable[Event]) -> list[Event]:
    """Without those of an older head after one of a newer, which every reader passes over."""
    newest, valid = 0, []
    for event in events:
        if (event["epoch"] or newest) >= newest:
            newest = event["epoch"] or newest
            valid.append(event)
    return valid


def steps(events: Iterable[Event]) -> Iterator[str]:
    """No step is skipped or made twice: an attempt counts on from a step that was saved, or is held
    in memory since it was finished, and is over when the next one has begun. One that replaces a
    rank says which finished step it counts on from; and one that finds a step held of which nobody
    was told, that step."""
    saved, finished, at, newest = {0}, set[int](), dict[int, int](), 0
    for event in events:
        kind, step, attempt = event["kind"], event["details"].get("step"), event["attempt"]
        if kind == "attempt":
            newest = max(newest, attempt)
        elif kind == "checkpoint":
            saved.add(step)
        elif kind == "restore":
            if step not in saved | finished:
                yield f"attempt {attempt} restores step {step}, which was never finished"
            saved.add(step)
        elif kind == "step-found":
            last = at[max(at)] if at else 0
            if step != last + 1:
                yield f"attempt {attempt} finds step {step} finished, and the last one was {last}"
            finished.add(step)
        elif kind == "resume":
            if step not in saved:
                yield f"attempt {attempt} resumes from step {step}, which was never saved"
            at[attempt] = step
        elif kind == "rank-replaced":
            if step not in saved | finished or step > at.get(attempt, 0):
                yield f"attempt {attempt} goes back to step {step}, which was never finished"
            at[attempt] = step
        elif kind == "step":
            if attempt != newest:
                yield f"attempt {attempt} makes step {step} after attempt {newest} has begun"
            if attempt not in at:
                yield f"attempt {attempt} makes step {step} without saying where it starts"
            elif step != at[attempt] + 1:
                yield f"attempt {attempt} makes step {step} after step {at[attempt]}"
            at[attempt] = step
            finished.add(step)


def heads(events: Iterable[Event]) -> Iterator[str]:
    """One head at a time: each writes under a number of its own, and none after a later one, but
    for what had been looked at and was to be written as that one came."""
    newest, began = 0, ""
    for event in events:
        epoch = event["epoch"]
        if epoch is None:
            yield f"nobody's: {event['sentence']!r}"
        elif event["kind"] == "start" and epoch <= newest:
            yield f"a head starts with lease {epoch} after lease {newest}"
        elif event["kind"] != "start" and epoch != newest and event["at"] > began:
            yield f"lease {epoch} writes {event['kind']!r} under lease {newest}"
        if (epoch or 0) > newest:
            newest, began = epoch, event["at"]


def endings(events: Iterable[Event]) -> Iterator[str]:
    """Attempts are counted one by one; each ends with one class and one answer, or with its head.

    The last may still run.
    """
    number, running, unanswered = 0, False, False
    for event in events:
        kind = event["kind"]
        if kind == "start":
            running = unanswered = False
        elif kind == "attempt":
            if running:
                yield f"attempt {number} ended without a class"
            if unanswered:
                yield f"the failure of attempt {number} has no answer"
            if event["attempt"] != number + 1:
                yield f"attempt {event['attempt']} follows attempt {number}"
            number, running, unanswered = event["attempt"], True, False
        elif kind == "failure":
            failure = event["details"]["failure"]
            if failure not in list(FailureClass):
                yield f"attempt {number}: {failure!r} is not a class"
            if not running:
                yield f"attempt {number} has a second class: {failure}"
            running, unanswered = False, True
        elif kind == "collective":
            unanswered = unanswered or event["details"]["verdict"] == "fail"
        elif kind == "decision" and event["details"]["answer"] in ("grow", "swap"):
            running = unanswered = False  # a stop that the head itself has asked for
        elif kind == "decision" and event["details"]["answer"] != "shrink":
            if not unanswered:
                yield f"an answer to no failure: {event['sentence']!r}"
            unanswered = False
        elif kind == "outcome":
            running = unanswered = False


def budget(events: Iterable[Event], max_restarts: int) -> Iterator[str]:
    """At most `max_restarts` restarts in a row under one head that bring no step."""
    fruitless = 0
    for event in events:
        if event["kind"] in ("start", "step"):
            fruitless = 0
        elif event["kind"] == "attempt":
            fruitless += 1
            if fruitless > max_restarts + 1:
                yield f"attempt {event['attempt']} is the {fruitless}th in a row without a step"


def loaded(events: Iterable[Event], damages: Sequence[Damage]) -> Iterator[str]:
    """No state is loaded that was broken on purpose, or that the run itself has called broken."""
    bad: dict[int, str] = {}
    pending = sorted(damages, key=lambda damage: damage.at)
    for event in events:
        while pending and pending[0].at < event["at"]:
            bad[pending.pop(0).step] = "damaged"
        kind, step = event["kind"], event["details"].get("step")
        if kind == "checkpoint" or (kind == "restore" and "memory" in event["sentence"]):
            bad.pop(step, None)
        elif kind == "checkpoint-skipped":
            bad[step] = "skipped"
        elif kind == "resume" and step in bad:
            yield f"attempt {event['attempt']} loads the {bad[step]} checkpoint of step {step}"


def progress(events: Sequence[Event], shown: Progress | None) -> Iterator[str]:
    """progress.json shows the step that was the newest when it was written."""
    steps = [event for event in events if event["kind"] == "step"]
    if not steps:
        return
    if shown is None:
        yield "there is no progress.json"
        return
    newest = next((event for event in reversed(steps) if event["at"] <= shown.at), steps[0])
    told = newest["attempt"], newest["details"]["step"]
    if told != (shown.attempt, shown.step):
        yield f"progress.json says {(shown.attempt, shown.step)}, the journal {told}"


def on_disk(
    checkpoints: Path, events: Sequence[Event], damages: Sequence[Damage] = ()
) -> Iterator[str]:
    """The checkpoint that was announced last is there and whole, unless it was damaged."""
    announced = [event for event in events if event["kind"] == "checkpoint"]
    if not announced:
        return
    last = announced[-1]
    step = last["details"]["step"]
    if any(damage.step == step and damage.at >= last["at"] for damage in damages):
        return
    if step not in steps_on_disk(checkpoints):
        newer = [other for other in steps_on_disk(checkpoints) if other > step]
        if not newer:
            yield f"the checkpoint of step {step} was announced and is not there"
    elif fault := fault_of(checkpoint_path(checkpoints, step)):
        yield f"the checkpoint of step {step} was announced, and {fault}"


def written(run: RunFiles) -> dict[str, str]:
    """The texts that people are shown: path to content."""
    paths = [run.journal, run.progress, run.result, run.run, *run.logs.rglob("*")]
    return {
        str(path.relative_to(run.root)): path.read_text(errors="replace")
        for path in paths
        if path.is_file()
    }


def told(texts: Mapping[str, str], secrets: Sequence[str]) -> Iterator[str]:
    """No secret stands in a text."""
    for name, text in texts.items():
        if any(secret and secret in text for secret in secrets):
            yield f"{name} has a secret in it"
