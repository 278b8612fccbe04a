"""Renders a flight record as one HTML page without scripts or network access."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from entrypoint.run.flight_record.record import FlightRecord
from entrypoint.run.flight_record.tally import TRAINING
from entrypoint.run.flight_record.text import duration

COLOURS = ("#2e7d32", "#1565c0", "#ef6c00", "#6a1b9a", "#c62828", "#00838f", "#9e9d24", "#5d4037")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
td, th { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left }
td { vertical-align: top }
.bar { display: flex; height: 2rem; border-radius: .3rem; overflow: hidden }
.dot { display: inline-block; width: .8rem; height: .8rem; border-radius: 50% }
code { word-break: break-word }
"""


def page(record: FlightRecord, name: str) -> str:
    title = escape(f"{name}: {record.outcome}")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{title}</title><style>{STYLE}</style></head><body>",
            f"<h1>{title}</h1><p>{escape(record.sentence)}</p>",
            f"<p><strong>{record.effective_time_ratio:.1%}</strong> effective time: "
            f"{record.steps} steps in {duration(record.wall_seconds)}, "
            f"{escape(record.began)} to {escape(record.ended)}.</p>",
            *_time(record),
            "<h2>Failures</h2>",
            *_failures(record),
            "<h2>Mended while the job went on</h2>",
            *_repairs(record),
            "<h2>Attempts</h2>",
            *_attempts(record),
            "</body></html>\n",
        ]
    )


def _time(record: FlightRecord) -> Iterable[str]:
    total = sum(record.seconds.values()) or 1.0
    uses = sorted(record.seconds.items(), key=lambda use: (use[0] != TRAINING, -use[1]))
    painted = [(use, spent, COLOURS[i % len(COLOURS)]) for i, (use, spent) in enumerate(uses)]
    yield '<div class="bar">'
    for use, spent, colour in painted:
        width = 100 * spent / total
        yield f'<div style="width:{width:.3f}%;background:{colour}" title="{escape(use)}"></div>'
    yield "</div><table>"
    for use, spent, colour in painted:
        yield (
            f'<tr><td><span class="dot" style="background:{colour}"></span> {escape(use)}</td>'
            f"<td>{duration(spent)}</td><td>{spent / total:.1%}</td></tr>"
        )
    yield "</table>"


def _failures(record: FlightRecord) -> Iterable[str]:
    if not record.failures:
        yield "<p>None.</p>"
        return
    yield _head("at", "class and evidence", "answer", "noticed after", "next step", "steps lost")
    for failure in record.failures:
        recovered = failure.recovery_seconds
        yield _row(
            escape(failure.at),
            f"<strong>{escape(failure.failure)}</strong><br><code>{escape(failure.evidence)}</code>",
            f"{escape(failure.answer)}<br>{escape(failure.decision)}",
            duration(failure.noticed_seconds),
            f"{duration(recovered)} later" if recovered is not None else "none",
            str(failure.steps_lost),
        )
    yield "</table>"


def _repairs(record: FlightRecord) -> Iterable[str]:
    if not record.repairs:
        yield "<p>Nothing.</p>"
        return
    yield _head("at", "attempt", "what")
    for repair in record.repairs:
        yield _row(escape(repair.at), str(repair.attempt or "none"), escape(repair.sentence))
    yield "</table>"


def _attempts(record: FlightRecord) -> Iterable[str]:
    yield _head("attempt", "began", "lasted", "from step", "steps", "ended")
    for attempt in record.attempts:
        lasted, numbers = duration(attempt.seconds), (attempt.resumed_from, attempt.steps)
        cells = (str(attempt.number), escape(attempt.at), lasted, *map(str, numbers))
        yield _row(*cells, escape(attempt.ending))
    yield "</table>"


def _head(*cells: str) -> str:
    return "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in cells) + "</tr>"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
