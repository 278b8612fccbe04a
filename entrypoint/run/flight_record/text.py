"""Puts a flight record into sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import shorten

from contract.durations import counted, duration, steps_kept
from entrypoint.run.failure_classes import FailureClass, for_people
from entrypoint.run.flight_record.record import AttemptRecord, FailureRecord, FlightRecord
from entrypoint.run.flight_record.time_accounting import TRAINING

NO_STEP = "no known step"
"""In place of a number of steps."""
MOST_SEEN = 90
"""Characters of what was seen at the end of an attempt, in its line."""


def lines(record: FlightRecord) -> Iterator[str]:
    yield f"{record.outcome}: {record.sentence}"
    knows_steps = record.effective_time_ratio is not None
    steps = steps_kept(record.steps, record.steps_lost) if knows_steps else NO_STEP
    yield (
        f"{steps} in {duration(record.wall_seconds)}, "
        f"{counted(len(record.attempts), 'attempt')}, "
        f"{counted(len(record.failures), 'failure')}"
    )
    yield effective_time(record)
    rest = {use: spent for use, spent in record.seconds.items() if use != TRAINING}
    if rest:
        yield "the rest:"
        for use, seconds in rest.items():
            share = seconds / record.wall_seconds if record.wall_seconds else 0.0
            yield f"  {share:6.1%}  {use}, {spent(seconds)}"
    if record.attempts:
        yield "attempts:"
        for attempt in record.attempts:
            made = f"from step {attempt.resumed_from}, {counted(attempt.steps, 'step')}"
            told = made if knows_steps else NO_STEP
            ending = _ending(attempt, record.failures)
            yield f"  {attempt.number}: {told} in {duration(attempt.seconds)}: {ending}"
    if record.failures:
        yield "failures:"
        for failure in record.failures:
            yield from _failure(failure)
    if record.repairs:
        yield "mended while the job went on:"
        for repair in record.repairs:
            yield f"  {dated(repair.at)} attempt {repair.attempt}: {repair.sentence}"


def effective_time(record: FlightRecord) -> str:
    if record.effective_time_ratio is None:
        return "no step of the job is known, so that its effective time is not known"
    counts = duration(record.seconds.get(TRAINING, 0.0))
    return f"effective time {record.effective_time_ratio:.1%}: {counts} of steps that count"


def _ending(attempt: AttemptRecord, failures: Sequence[FailureRecord]) -> str:
    """Return how an attempt ended; of no class, what was seen."""
    of_this = (one.evidence for one in failures if one.attempt == attempt.number)
    seen = next(of_this, "") if attempt.ending == FailureClass.UNKNOWN else ""
    return (
        f"{attempt.ending} ({shorten(seen, MOST_SEEN, placeholder=' …')})"
        if seen
        else attempt.ending
    )


def _failure(failure: FailureRecord) -> Iterator[str]:
    sentence = for_people({"failure": failure.failure}, f"{failure.failure}: {failure.evidence}")
    yield f"  {dated(failure.at)} attempt {failure.attempt}: {sentence}"
    yield f"    {failure.answer}: {failure.decision}"
    back = (
        f"next step {duration(failure.recovery_seconds)} later"
        if failure.recovery_seconds is not None
        else "no step since"
    )
    yield (
        f"    noticed after {duration(failure.noticed_seconds)}, {back}, "
        f"{counted(failure.steps_lost, 'step')} lost"
    )


def dated(at: str) -> str:
    """Return a time of the record as the console and the logs have it."""
    return datetime.fromisoformat(at).strftime("%Y-%m-%d %H:%M:%S%z")


def spent(seconds: float) -> str:
    """Return a use of time; what is too short for a digit is not nothing."""
    return "< 0.1 s" if 0 < seconds < 0.05 else duration(seconds)
