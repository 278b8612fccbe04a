"""A run's flight record, made from its journal alone: attempts, failures, and use of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from entrypoint.run.attempt_ends import (
    BY_HEAD,
    HEAD_LOST,
    INTERRUPTED,
    TRAINER_LOST,
    ends_attempt,
    lost_in,
)
from entrypoint.run.failure_classes import evidence_of
from entrypoint.run.flight_record.time_accounting import GOES_BACK, REPAIRS, USES, Tally

RUNNING = "running"
SILENT_ENDS = {
    HEAD_LOST: "the head ended without a word",
    TRAINER_LOST: "the trainer ended without a word",
}
FINISHED = ("step", "step-found")
"""Kinds of events that record a finished step."""
ROUTINE = ("step", "checkpoint", "eval", "best")
"""Kinds of events of which a run without faults has many."""


@dataclass(frozen=True, slots=True)
class Event:
    place: int
    """The event's number in the journal, which orders events whatever the clocks say."""
    at: datetime
    elapsed: float
    """Seconds since the run began, the time of all heads together."""
    kind: str
    attempt: int | None
    sentence: str
    details: Mapping[str, Any]

    def seconds_after(self, other: Event) -> float:
        return self.elapsed - other.elapsed


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    number: int
    at: str
    elapsed_seconds: float
    """Seconds from the beginning of the run to that of the attempt."""
    seconds: float
    resumed_from: int
    steps: int
    """Steps that it finished, with those that a later attempt repeated."""
    ending: str
    """finished, stopped, failed, more workers, a slow node, head_lost, trainer_lost, its class of
    failure, or running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    attempt: int | None
    at: str
    elapsed_seconds: float
    """Seconds from the beginning of the run until the failure was known."""
    failure: str
    evidence: str
    answer: str
    """resume, replace, shrink, stop, or start: a new head."""
    decision: str
    noticed_seconds: float
    """Seconds from the last sign of life until the failure was known."""
    recovery_seconds: float | None
    """Seconds from then to the next finished step; None if there was none."""
    steps_lost: int
    """Finished steps that no checkpoint held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRecord:
    """A loss that was repaired while the attempt went on."""

    attempt: int | None
    at: str
    elapsed_seconds: float
    """Seconds from the beginning of the run."""
    kind: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    began: str
    ended: str
    outcome: str
    """finished, stopped, failed, or running; of a run directory in which nothing lives, head_lost
    or trainer_lost."""
    sentence: str
    wall_seconds: float
    steps: int
    """Steps that the run has at its end."""
    steps_lost: int
    """Finished steps that the run has gone back over: it makes them again."""
    effective_time_ratio: float | None
    """Share of the wall time that went into steps that count; None if no step is known."""
    seconds: Mapping[str, float]
    """Use of the wall time to its seconds, the longest first."""
    attempts: Sequence[AttemptRecord]
    failures: Sequence[FailureRecord]
    repairs: Sequence[RepairRecord]


class NothingToReportError(ValueError):
    """The journal has no events."""


def from_journal(rows: Iterable[Mapping[str, Any]]) -> FlightRecord:
    """Pure. The flight record of `rows`, the journal's events, oldest first.

    Raises NothingToReportError if no row is an event.
    """
    read = _Read()
    for place, row in enumerate(rows):
        read.add(place, row)
    events, tally = read.events(), read.tally
    if not events:
        raise NothingToReportError("its journal has no events")
    last = events[-1]
    seconds = {use: round(total, 3) for use, total in tally.seconds.items()}
    return FlightRecord(
        began=read.began,
        ended=last.at.isoformat(),
        outcome=str(last.details["outcome"]) if last.kind == "outcome" else RUNNING,
        sentence=last.sentence,
        wall_seconds=round(tally.elapsed, 3),
        steps=read.steps,
        steps_lost=read.lost,
        effective_time_ratio=round(tally.effective_time_ratio, 4) if tally.tells_steps else None,
        seconds={use: n for use, n in sorted(seconds.items(), key=lambda use: -use[1]) if n > 0},
        attempts=_attempts(events),
        failures=_failures(events),
        repairs=read.repairs,
    )


class _Read:
    """What a record needs of the events so far: the same, however many steps there are."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.began = ""
        self.repairs: list[RepairRecord] = []
        self.steps = 0
        """The step that was finished or rolled back to last, which need not be the highest."""
        self.lost = 0
        """Finished steps that the run has gone back over."""
        self._events: list[Event] = []
        self._later: Event | None = None
        """The newest of some steps in a row, after the first."""
        self._made = 0
        """Steps of them all."""
        self._routine: Event | None = None
        """The newest routine event, if it follows all of these."""

    def add(self, place: int, row: Mapping[str, Any]) -> None:
        """Add a row if it is an event: the file may be damaged."""
        try:
            at = datetime.fromisoformat(row["at"])
            kind, attempt, sentence = row["kind"], row["attempt"], row["sentence"]
            details = row["details"]
        except (KeyError, TypeError, ValueError):
            return
        self.tally.add(at, kind, details)
        event = Event(place, at, self.tally.elapsed, kind, attempt, sentence, details)
        if kind in FINISHED or kind in GOES_BACK:
            if kind in GOES_BACK:
                self.lost += max(0, self.steps - details["step"])
            self.steps = details["step"]
        if kind in REPAIRS:
            self.repairs.append(_repair(event))
        if kind in USES:
            self.began = self.began or at.isoformat()
            self._add(event)

    def events(self) -> list[Event]:
        """Return the events, of which a row of routine ones has been made three at most."""
        return [*self._events, *self._rest()]

    def _rest(self) -> list[Event]:
        later = self._later
        if later is not None:
            later = replace(later, details={**later.details, "steps": self._made})
        return [event for event in (later, self._routine) if event is not None]

    def _add(self, event: Event) -> None:
        if event.kind not in ROUTINE:
            self._events += [*self._rest(), event]
            self._later = self._routine = None
            self._made = 0
        elif event.kind != "step":
            self._routine = event
        elif self._later is None and (not self._events or self._events[-1].kind != "step"):
            self._events.append(event)
            self._routine = None
        else:
            self._later, self._routine = event, None
            self._made += event.details.get("steps", 1)


def _repair(event: Event) -> RepairRecord:
    return RepairRecord(
        attempt=event.attempt,
        at=event.at.isoformat(),
        elapsed_seconds=round(event.elapsed, 3),
        kind=event.kind,
        sentence=event.sentence,
    )


def _attempts(events: Sequence[Event]) -> list[AttemptRecord]:
    starts = [index for index, event in enumerate(events) if event.kind == "attempt"]
    made: list[AttemptRecord] = []
    for index, until in pairwise([*starts, len(events)]):
        start, rest = events[index], events[index + 1 : until]
        ends = [event for event in rest if ends_attempt(event.kind, event.details)]
        last = ends[0] if ends else (rest[-1] if rest else start)
        made.append(
            AttemptRecord(
                number=start.attempt or len(made) + 1,
                at=start.at.isoformat(),
                elapsed_seconds=round(start.elapsed, 3),
                seconds=round(last.seconds_after(start), 3),
                resumed_from=_resumed_from(start, rest),
                steps=sum(event.details.get("steps", 1) for event in rest if event.kind == "step"),
                ending=_ending(start, ends[0]) if ends else RUNNING,
            )
        )
    return made


def _resumed_from(start: Event, rest: Sequence[Event]) -> int:
    """Return the step after which the attempt goes on: memory may have more than the disk had."""
    told = next((event.details["step"] for event in rest if event.kind == "resume"), None)
    return int(start.details.get("resume_from", 0) if told is None else told)


def _ending(start: Event, event: Event) -> str:
    if event.kind == "start":
        return lost_in(start.details)
    if event.kind == INTERRUPTED:
        return "stopped"
    if event.kind == "decision":
        return BY_HEAD[event.details["answer"]]
    return str(event.details["failure" if event.kind == "failure" else "outcome"])


def _failures(events: Sequence[Event]) -> list[FailureRecord]:
    found = []
    attempt: int | None = None
    for index, event in enumerate(events):
        if event.kind == "attempt":
            attempt = index
        elif attempt is not None and ends_attempt(event.kind, event.details):
            if event.kind in ("failure", "start"):
                found.append(_failure(events[attempt:index], event, events[index + 1 :]))
            attempt = None
    return found


def _failure(before: Sequence[Event], event: Event, after: Sequence[Event]) -> FailureRecord:
    """`before`: the events of the attempt that failed, from its start."""
    steps = [done.details["step"] for done in before if done.kind in FINISHED]
    next_step = next((later for later in after if later.kind == "step"), None)
    resumed = next((later for later in after if later.kind == "resume"), None)
    decision = next((later for later in after if later.kind in ("decision", "outcome")), event)
    silent = event.seconds_after(before[-1])
    is_silent_end = event.kind == "start"
    lost = lost_in(before[0].details)
    return FailureRecord(
        attempt=before[0].attempt,
        at=event.at.isoformat(),
        elapsed_seconds=round(event.elapsed, 3),
        failure=lost if is_silent_end else str(event.details["failure"]),
        evidence=SILENT_ENDS[lost] if is_silent_end else evidence_of(event.details, event.sentence),
        answer="start" if is_silent_end else _answer(decision),
        decision=event.sentence if is_silent_end else decision.sentence,
        noticed_seconds=round(float(event.details.get("silent_seconds", silent)), 3),
        recovery_seconds=round(next_step.seconds_after(event), 3) if next_step else None,
        steps_lost=max(0, steps[-1] - resumed.details["step"]) if steps and resumed else 0,
    )


def _answer(decision: Event) -> str:
    return str(decision.details.get("answer", "stop" if decision.kind == "outcome" else "resume"))
