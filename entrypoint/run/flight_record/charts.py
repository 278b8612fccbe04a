"""Pure: pictures of a run as HTML without scripts: curves, shares of a time, a timeline.

A picture is as wide as its place. Lines do not scale with it, and its texts lie beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.durations import duration
from entrypoint.run.flight_record.markup import Html, element
from entrypoint.run.flight_record.record import FlightRecord
from entrypoint.run.flight_record.text import counted

WIDTH, HEIGHT = 1000, 200
"""Of the coordinates of a curve."""
FEW_POINTS = 60
"""Up to so many points of a curve are drawn as dots, too."""
GRID = (0.0, 0.5, 1.0)

Values = Sequence[float | None]


def curves(
    title: str,
    steps: Sequence[int],
    metrics: Sequence[Mapping[str, str]],
    series: Mapping[str, Values],
) -> Html:
    """Return a figure with one line for each metric, over the steps.

    `metrics`: name, label and colour of each; `series`: name → values.
    """
    known = [v for metric in metrics for v in series[metric["name"]] if v is not None]
    low, high = _range(known)
    scale = _Scale(steps[0], max(steps[-1], steps[0] + 1), low, high)
    lines, legend, said = [], [], []
    for metric in metrics:
        label, colour, values = metric["label"], metric["colour"], series[metric["name"]]
        points = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
        lines += _lines([scale.at(step, value) for step, value in points], colour)
        words = f"{label}: {points[0][1]:g} at step {points[0][0]}"
        if len(points) > 1:
            words += f", {points[-1][1]:g} at step {points[-1][0]}"
        said.append(words)
        legend.append(element("li", swatch(colour), words))
    grid = element(
        "path", d="".join(f"M0 {y * HEIGHT:g}H{WIDTH}" for y in GRID), class_="grid", fill="none"
    )
    picture = element(
        *("svg", grid, *lines),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}. {'; '.join(said)}",
    )
    heights = element("div", *(element("span", f"{v:.3g}") for v in (high, low)), class_="heights")
    widths = element(
        "div", *(element("span", f"step {steps[n]}") for n in (0, -1)), class_="widths"
    )
    plot = element("div", heights, picture, widths, class_="plot")
    caption, names = element("figcaption", title), element("ul", *legend, class_="legend")
    return element("figure", caption, plot, names)


def shares(title: str, uses: Sequence[tuple[str, float, str]], total: float) -> Html:
    """Return a bar and a table. `uses`: name, seconds, colour; `total`: seconds of all."""
    whole = total or 1.0
    said = "; ".join(f"{name} {spent / whole:.1%}" for name, spent, _ in uses)
    parts = [
        element(
            "span",
            title=f"{name}: {duration(spent)}",
            style=f"width:{100 * spent / whole:.3f}%;background:{colour}",
        )
        for name, spent, colour in uses
    ]
    bar = element("div", *parts, class_="bar", role="img", aria_label=f"{title}. {said}")
    rows = [
        element(
            "tr",
            element("th", swatch(colour), name, scope="row"),
            element("td", duration(spent)),
            element("td", f"{spent / whole:.1%}"),
        )
        for name, spent, colour in uses
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
    known = {"finished": "good", "running": "busy", "more workers": "busy", "queued": "busy"}
    return known.get(ending, "warn" if ending == "stopped" else "bad")


@dataclass(frozen=True, slots=True)
class _Scale:
    first: int
    last: int
    low: float
    high: float

    def at(self, step: int, value: float) -> tuple[float, float]:
        """Return where a point lies in the picture."""
        x = (step - self.first) / (self.last - self.first)
        y = (value - self.low) / (self.high - self.low)
        return round(x * WIDTH, 1), round((1 - y) * HEIGHT, 1)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return what a chart shows: shares from 0 to 1, else from the least to the most."""
    low, high = min(values), max(values)
    if low >= 0 and 0.2 < high <= 1:
        return 0.0, 1.0
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _lines(points: Sequence[tuple[float, float]], colour: str) -> list[Html]:
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    made = [element("path", d=f"M{path}", stroke=colour, fill="none", class_="line")]
    if len(points) <= FEW_POINTS:
        dots = "".join(f"M{x:g} {y:g}h0" for x, y in points)
        made.append(element("path", d=dots, stroke=colour, fill="none", class_="dots"))
    return made


def _mark(sign: str, colour: str, place: str, title: str) -> Html:
    return element("span", sign, class_=f"mark {colour}", style=place, title=title)
