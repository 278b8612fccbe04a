"""Renders a run, or the jobs of a cluster, as one HTML page that needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from statistics import fmean

from contract.durations import counted, duration, significant, steps_kept
from contract.metrics.charts import WHOLE_STEP, Group, title_of
from entrypoint.run import curves, inline_code
from entrypoint.run.curves import Best
from entrypoint.run.flight_record import time_bars
from entrypoint.run.flight_record.markup import Html, element, joined
from entrypoint.run.flight_record.read_run import Part, pipelines
from entrypoint.run.flight_record.record import FailureRecord, FlightRecord
from entrypoint.run.flight_record.text import effective_time
from entrypoint.run.flight_record.time_accounting import (
    AGAIN,
    IN_FLIGHT,
    NO_HEAD,
    NOTICING,
    TRAINING,
    UNTOLD,
)

HERE = files("entrypoint.run.flight_record")
STYLE = (HERE / "report.css").read_text()
SCRIPTS = (*inline_code.SCRIPTS, (HERE / "report.js").read_text())
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    f"script-src {' '.join(map(inline_code.source, SCRIPTS))}"
)
NOT_KNOWN = "–"
LONG = 18
"""Characters of a fact that has two columns, where there are."""
USES: Mapping[str, str] = {
    TRAINING: curves.GREEN,
    UNTOLD: curves.BLUE,
    AGAIN: curves.VIOLET,
    IN_FLIGHT: curves.ROSE,
    NOTICING: curves.CLAY,
    NO_HEAD: curves.GREY,
    "roll call": "#a0704a",
    "services": "#0f8fa5",
    "start of the job": curves.LAVENDER,
    "evaluation": curves.MAGENTA,
    "checkpoints": "#6b8e23",
    "end of the job": curves.RED,
}
"""Of the uses of a run's time."""


def page(name: str, parts: Sequence[Part]) -> str:
    """Pure: return the page. `parts`: the run, or all jobs of a cluster."""
    is_one = len(parts) == 1 and not parts[0].stage
    title = f"{name}: {parts[0].state}" if is_one else f"{name}: {counted(len(parts), 'job')}"
    body = list(_one(parts[0], 2)) if is_one else list(_several(parts))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(inline_code.STYLE + STYLE)),
    )
    main = element("main", element("h1", title), *body)
    scripts = (element("script", Html(code)) for code in SCRIPTS)
    whole = element("body", main, Html(inline_code.LICENCE), *scripts)
    return f"<!doctype html>\n{element('html', head, whole, lang='en')}\n"


def _several(parts: Sequence[Part]) -> Iterator[Html]:
    for group in pipelines(parts):
        is_pipeline = bool(group[0].stage) or len(group) > 1
        what = (
            f"Pipeline: {counted(len(group), 'stage')}" if is_pipeline else f"Job {group[0].name}"
        )
        yield element("h2", what)
        if is_pipeline:
            yield _overview(group)
        for part in group:
            yield element(
                "section",
                *([element("h3", _titled(part))] if is_pipeline else []),
                *_one(part, 4 if is_pipeline else 3),
                id=part.name,
            )


def _titled(part: Part) -> str:
    return f"Stage {part.stage} ({part.name})" if part.stage else part.name


def _overview(group: Sequence[Part]) -> Html:
    """The stages in their order: how each ended, and its share of the time."""
    rows: list[Sequence[str]] = []
    for part in group:
        record = part.record
        cells = (
            element("a", _titled(part), href=f"#{part.name}"),
            part.facts.get("recipe", ""),
            _chip(part.state),
            _steps(record) if record else "",
            duration(record.wall_seconds) if record else "",
            str(len(record.failures)) if record else "",
        )
        rows.append(cells)
    spent = [
        (_titled(part), part.record.wall_seconds, curves.LINES[place % len(curves.LINES)])
        for place, part in enumerate(group)
        if part.record
    ]
    names = ("stage", "recipe", "end", "steps", "time", "failures")
    table = _table(f"The stages of the pipeline of {group[0].name}", names, rows)
    if not spent:
        return table
    total = sum(seconds for _, seconds, _ in spent)
    return joined([table, time_bars.shares("Time of the stages", spent, total)])


def _one(part: Part, level: int) -> Iterator[Html]:
    """One run. `level`: of its headings."""
    title = f"h{level}"
    yield element("p", _chip(part.state), " ", part.sentence, class_="end")
    if part.no_reward:
        yield element("p", f"Warning: {part.no_reward}")
    for line in part.end.why(as_shown=False) if part.end else ():
        label, _, text = line.partition(": ")
        yield element("p", element("b", f"{label}: "), element("span", text, class_="typed"))
    record = part.record
    if record is None:
        return
    yield _pairs(_facts(part))
    if part.flags:
        given = _pairs((name or "command", text) for name, text in part.flags.items())
        yield element("details", element("summary", "Flags that the run began with"), given)
    yield element(title, "Learning curve")
    yield _curves(part)
    yield element(title, "Timeline")
    yield time_bars.timeline(record)
    yield element(title, "Where the time went")
    yield element("p", f"{effective_time(record)}.")
    yield _time(record)
    if phases := _phases(part):
        total = sum(seconds for _, seconds, _ in phases)
        yield element(title, "Where the time of a step went")
        yield element("p", f"The mean of the steps that have metrics: {duration(total)}.")
        yield time_bars.shares("Phases of a step", phases, total)
    yield element(title, "Failures")
    yield from _failures(record, f"h{level + 1}")
    yield element(title, "Repaired while the job went on")
    yield _repairs(record)
    yield element(title, "Attempts")
    yield _attempts(part.name, record)


def _pairs(rows: Iterable[tuple[str, str]]) -> Html:
    return element("dl", *(_pair(name, text) for name, text in rows))


def _pair(name: str, text: str) -> Html:
    width = "long" if len(text) > LONG else None
    return element("div", element("dt", name), element("dd", text), class_=width)


def _facts(part: Part) -> Iterator[tuple[str, str]]:
    assert part.record is not None
    record = part.record
    facts = part.facts
    told = {
        "started from": facts.get("model_path") or facts.get("model", ""),
        **_written(part),
        "data": facts.get("data", ""),
        "algorithm": facts.get("algorithm", ""),
        "recipe": facts.get("recipe", ""),
        "run directory": facts.get("run_dir", ""),
        "best value": _valued(part.best),
        "last value": _valued(part.last),
    }
    yield from ((name, text) for name, text in told.items() if text)
    yield from (
        ("steps", _steps(record)),
        ("time", duration(record.wall_seconds)),
        ("began", moment(record.began)),
        ("last event", moment(record.ended)),
        ("attempts", str(len(record.attempts))),
        ("failures", str(len(record.failures))),
        ("repairs", str(len(record.repairs))),
    )


def _written(part: Part) -> dict[str, str]:
    """Return the places of what the run has made, by name."""
    lines = part.end.places(as_shown=False) if part.end else ()
    return {name: place for name, _, place in (line.partition(": ") for line in lines)}


def _steps(record: FlightRecord) -> str:
    if record.effective_time_ratio is None:
        return "not known"
    return steps_kept(record.steps, record.steps_lost).replace(" steps", "")


def _valued(best: Best | None) -> str:
    if best is None:
        return ""
    when = f"after step {best.step}" if best.step else "before training"
    return f"{title_of(best.metric)} {significant(best.value)}, {when}"


def _curves(part: Part) -> Html:
    """Return the rows that report.js draws; without scripts, a table of them."""
    drawn = part.curves.get("charts", [])
    learns = any(chart["group"] == Group.LEARNING for chart in drawn)
    found = [] if learns else [element("p", "The job has reported no reward, loss or accuracy.")]
    if not drawn:
        return joined(found)
    rows = json.dumps({name: part.curves[name] for name in ("steps", "series", "charts")})
    data = element("script", Html(rows.replace("<", r"\u003c")), type="application/json")
    table = element("noscript", _first_and_last(part))
    return joined([*found, element("div", data, table, class_="curves")])


def _first_and_last(part: Part) -> Html:
    rows: list[Sequence[str]] = []
    for chart in part.curves["charts"]:
        for metric in chart["metrics"]:
            values = zip(part.curves["steps"], part.curves["series"][metric["name"]], strict=True)
            known = [f"{value:g} at step {step}" for step, value in values if value is not None]
            rows.append((chart["title"], metric["label"], known[0], known[-1]))
    return _table(f"The curves of {part.name}", ("chart", "metric", "first", "last"), rows)


def _time(record: FlightRecord) -> Html:
    uses = sorted(record.seconds.items(), key=lambda use: (use[0] != TRAINING, -use[1]))
    painted = [(use, spent, USES.get(use, curves.GREY)) for use, spent in uses]
    return time_bars.shares("Use of the time", painted, sum(record.seconds.values()))


def _phases(part: Part) -> list[tuple[str, float, str]]:
    """The phases of a step: name, mean seconds, colour."""
    means = {
        name: fmean(known)
        for name, values in part.curves.get("series", {}).items()
        if name.startswith(curves.TIMING)
        and name != WHOLE_STEP
        and (known := [value for value in values if value is not None])
    }
    painted = zip(means.items(), curves.styles_of(list(means)), strict=True)
    found = [
        (name.removeprefix(curves.TIMING), mean, style.colour) for (name, mean), style in painted
    ]
    order = list(curves.PHASES)
    return sorted(found, key=lambda one: order.index(one[0]) if one[0] in order else len(order))


def _failures(record: FlightRecord, title: str) -> Iterator[Html]:
    if not record.failures:
        yield element("p", "None.")
    for failure in record.failures:
        yield element(
            "article",
            element(title, element("span", failure.failure, class_="bad"), _of(failure)),
            element("pre", failure.evidence),
            element("p", element("b", f"{failure.answer}: "), failure.decision),
            element("p", _cost(failure), class_="faint"),
        )


def _of(failure: FailureRecord) -> str:
    return f" · attempt {failure.attempt} · {moment(failure.at)}"


def _cost(failure: FailureRecord) -> str:
    back = failure.recovery_seconds
    return (
        f"noticed after {duration(failure.noticed_seconds)}; "
        f"{'no step since' if back is None else f'next step {duration(back)} later'}; "
        f"{counted(failure.steps_lost, 'finished step')} lost"
    )


def _repairs(record: FlightRecord) -> Html:
    if not record.repairs:
        return element("p", "Nothing.")
    rows = [
        element("li", element("time", moment(one.at), datetime=one.at), f" {one.sentence}")
        for one in record.repairs
    ]
    return element("ol", *rows)


def _attempts(name: str, record: FlightRecord) -> Html:
    names = ("attempt", "began", "time", "from step", "steps", "end")
    knows_steps = record.effective_time_ratio is not None
    rows = [
        (
            str(one.number),
            moment(one.at),
            duration(one.seconds),
            str(one.resumed_from) if knows_steps else NOT_KNOWN,
            str(one.steps) if knows_steps else NOT_KNOWN,
            element("span", one.ending, class_=time_bars.attempt_colour(one.ending)),
        )
        for one in record.attempts
    ]
    return _table(f"The attempts of {name}", names, rows)


def _table(label: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table that scrolls where it is too wide: by the keyboard, too. A phone has a block a row.

    There a cell has the name of its column in `data-name`.
    """
    heads = [element("th", name, scope="col") for name in names]
    made = [
        element(
            "tr",
            element("th", row[0], scope="row", data_name=names[0]),
            *(
                element("td", text, data_name=name)
                for name, text in zip(names[1:], row[1:], strict=True)
            ),
        )
        for row in rows
    ]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *made))
    return element("div", table, class_="wide", role="region", aria_label=label, tabindex="0")


def _chip(state: str) -> Html:
    return element("span", state, class_=f"chip {time_bars.attempt_colour(state)}")


def moment(at: str) -> str:
    """Pure: return an ISO time to the second, such as 2026-01-31 18:00:00 UTC."""
    return re.sub(r"\.\d+", "", at.replace("T", " ")).replace("+00:00", " UTC")
