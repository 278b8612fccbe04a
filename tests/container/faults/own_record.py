"""Pure: what a job has recorded of itself, and the journal → what is wrong, a sentence each.

For jobs whose steps the head only sees in their log: the journal has some of them. The job's record
has all, each with its loss, which is the same whenever the step is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from contract.run_dir import RunFiles
from tests.container.faults import checker
from tests.container.faults.checker import Event

Row = Mapping[str, Any]


def faults(
    run: RunFiles, rows: Sequence[Row], *, max_restarts: int, secrets: Sequence[str] = ()
) -> list[str]:
    """All that is wrong with a run whose job has recorded `rows`."""
    written_down = checker.all_events(run.journal)
    events = checker.in_force(written_down)
    return [
        *checker.heads(written_down),
        *checker.endings(events),
        *checker.budget(events, max_restarts),
        *begun(rows, events),
        *counted(rows),
        *repeated(rows),
        *checker.told(checker.written(run), secrets),
    ]


def begun(rows: Sequence[Row], events: Iterable[Event]) -> Iterator[str]:
    """Each attempt begins after the newest step that was saved whole before it started."""
    began = {row["attempt"]: row["step"] for row in rows if row["kind"] == "begin"}
    for event in events:
        if event["kind"] != "attempt":
            continue
        attempt, told = event["attempt"], event["details"]["resume_from"]
        saved = [r["step"] for r in rows if r["kind"] == "saved" and r["at"] < event["at"]]
        if told < max(saved, default=0):
            yield f"attempt {attempt} is to resume from step {told}, and {max(saved)} was saved"
        if began.get(attempt, told) != told:
            yield f"attempt {attempt} is to resume from step {told}, and begins at {began[attempt]}"


def counted(rows: Iterable[Row]) -> Iterator[str]:
    """No attempt skips a step, makes one twice, or makes one when the next has begun."""
    at: dict[int, int] = {}
    for row in rows:
        attempt, step = row["attempt"], row["step"]
        if row["kind"] == "begin":
            at[attempt] = step
        elif row["kind"] == "step":
            if attempt not in at or step != at[attempt] + 1:
                yield f"attempt {attempt} makes step {step} after step {at.get(attempt)}"
            if attempt < max(at, default=attempt):
                yield f"attempt {attempt} makes step {step} after attempt {max(at)} has begun"
            at[attempt] = step


def repeated(rows: Iterable[Row]) -> Iterator[str]:
    """A step that is done again has the loss that it had before."""
    first: dict[int, Row] = {}
    for row in rows:
        if row["kind"] == "step":
            before = first.setdefault(row["step"], row)
            if row["value"] != before["value"]:
                yield (
                    f"step {row['step']} has the loss {before['value']} in attempt "
                    f"{before['attempt']}, and {row['value']} in attempt {row['attempt']}"
                )
