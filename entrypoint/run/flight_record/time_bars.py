"""Pure: the times of a run as bars, in HTML without scripts: shares of a time, a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from contract.durations import counted, duration
from entrypoint.run.attempt_ends import BY_HEAD
from entrypoint.run.flight_record.markup import Html, element
from entrypoint.run.flight_record.record import FlightRecord
from entrypoint.run.flight_record.text import spent

GRID = (0.0, 0.5, 1.0)


def shares(title: str, uses: Sequence[tuple[str, float, str]], total: float) -> Html:
    """Return a bar and a table. `uses`: name, seconds, colour; `total`: seconds of all."""
    whole = total or 1.0
    said = "; ".join(f"{name} {seconds / whole:.1%}" for name, seconds, _ in uses)
    parts = [
        element(
            "span",
            title=f"{name}: {spent(seconds)}",
            style=f"width:{100 * seconds / whole:.3f}%;background:{colour}",
        )
        for name, seconds, colour in uses
    ]
    bar = element("div", *parts, class_="bar", role="img", aria_label=f"{title}. {said}")
    rows = [
        element(
            "tr",
            element("th", swatch(colour), name, scope="row"),
            element("td", spent(seconds)),
            element("td", f"{seconds / whole:.1%}"),
        )
        for name, seconds, colour in uses
    ]
    return element("div", bar, element("table", element("tbody", *rows)))


def timeline(record: FlightRecord) -> Html:
    """Return lanes over the run's time: its attempts, its failures, its repairs."""
    whole = record.wall_seconds or 1.0

    def left(seconds: float) -> str:
        return f"left:{100 * min(1.0, seconds / whole):.3f}%"

    attempts = [
        element(
            "span",
            class_=f"attempt {attempt_colour(one.ending)}",
            title=f"attempt {one.number}: {one.ending}, {duration(one.seconds)}",
            style=f"{left(one.elapsed_seconds)};width:{100 * one.seconds / whole:.3f}%",
        )
        for one in record.attempts
    ]
    failures = [
        _mark("✕", "bad", left(one.elapsed_seconds), f"{one.failure}, attempt {one.attempt}")
        for one in record.failures
    ]
    repairs = [
        _mark("◆", "warn", left(one.elapsed_seconds), one.sentence) for one in record.repairs
    ]
    said = (
        f"{counted(len(attempts), 'attempt')}, {counted(len(failures), 'failure')} and "
        f"{counted(len(repairs), 'repair')} in {duration(record.wall_seconds)}"
    )
    named = (("attempts", attempts), ("failures ✕", failures), ("repairs ◆", repairs))
    lanes = [
        element("div", element("b", name), element("div", *marks, class_="lane"), class_="row")
        for name, marks in named
        if marks
    ]
    ticks = [element("span", duration(whole * n)) for n in GRID]
    axis = element("div", element("b"), element("div", *ticks, class_="widths"), class_="row")
    return element("div", *lanes, axis, class_="lanes", role="img", aria_label=f"Timeline: {said}")


def swatch(colour: str) -> Html:
    return element("span", class_="dot", style=f"background:{colour}")


def attempt_colour(ending: str) -> str:
    """Pure: return the class of a colour for the end of an attempt or a run."""
    by_head = dict.fromkeys(BY_HEAD.values(), "busy")
    known = {"finished": "good", "running": "busy", "queued": "busy", **by_head}
    return known.get(ending, "warn" if ending == "stopped" else "bad")


def _mark(sign: str, colour: str, place: str, title: str) -> Html:
    return element("span", sign, class_=f"mark {colour}", style=place, title=title)
