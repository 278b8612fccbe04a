"""Runs side by side: their final and best values, and the flags in which they differ.

The page and `rollcall report RUN RUN …` show the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.durations import duration, significant
from contract.journal import read_events
from contract.metrics.charts import WHOLE_STEP, charts_of, title_of
from contract.run_dir import RunFiles
from entrypoint.run import run_facts
from entrypoint.run.curves import Best, Curves, Measured
from entrypoint.run.flight_record import read_run
from entrypoint.run.flight_record.record import NothingToReportError, from_journal
from entrypoint.run.shown_path import shown

MOST_RUNS = 8
"""Of one comparison: each has a colour of its own on the page."""
NOTHING = "–"
TITLES = {"steps": "steps", "time": "time", WHOLE_STEP: "time of a step, median"}
TOKENS = "perf/tokens_per_second"
PLACES = re.compile(
    r"(?:^|[._])(?:run_dir|output_dir|ckpt_path|save_path|save_dir|default_local_dir"
    r"|use_tensorboard|tensorboard_dir|hub_model_id|\w*run_name|run_group|experiment_name|exp_name"
    r"|\w*port)$"
)
"""Names of flags that say where a run lies, and how it is called: they always differ."""
LOOPBACK = re.compile(r"\b(127\.\d+\.\d+\.\d+|localhost):\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What one run brings to a comparison."""

    name: str
    path: Path
    recipe: str
    flags: Mapping[str, str]
    steps: int | None
    """None if no step is known."""
    seconds: float
    """The time of all its heads together."""
    measured: Mapping[str, Measured]


def read(run: RunFiles, curves: Curves | None = None) -> Compared:
    """Read a run; `curves`: those of its metrics, as far as they are read.

    Raises OSError, and NothingToReportError if its journal has no events.
    """
    curves = curves or Curves(run.metrics)
    while curves.rows()["more"]:
        pass
    record, facts = from_journal(read_events(run.journal)), run_facts.read(run)
    if run.jobs.is_dir() and not record.attempts:
        raise NothingToReportError(f"it has submitted jobs alone: give one, as in {run.jobs}/job-1")
    return Compared(
        name=facts["name"],
        path=run.root.absolute(),
        recipe=facts.get("recipe", ""),
        flags=run_facts.flags(run),
        steps=None if record.effective_time_ratio is None else record.steps,
        seconds=record.wall_seconds,
        measured=curves.measured() or read_run.told(run).measured(),
    )


def of(runs: Sequence[Compared]) -> dict[str, Any]:
    """Pure: return the comparison as JSON: runs, values and flags, a cell for each run."""
    return {
        "runs": [
            {
                "name": run.name,
                "path": str(run.path),
                "recipe": run.recipe,
                "flags_known": bool(run.flags),
            }
            for run in runs
        ],
        "values": [*_measured(runs), *_spent(runs)],
        "flags": _differing(runs),
    }


def _measured(runs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return the last and the best values of what says how well the runs have learned."""
    names = {name for run in runs for name in run.measured}
    found = []
    for chart, own in charts_of(names):
        for name in own if chart.is_compared else ():
            known = [run.measured.get(name) for run in runs]
            found.append(_row(name, "last", [one and one.last for one in known]))
            if any(best := [one and one.best for one in known]):
                found.append(_row(name, "best", best))
    return found


def _spent(runs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return what the runs have taken."""
    found = [
        _row("steps", "kept", [_steps(run) for run in runs]),
        _row("time", "whole", [Best("time", run.seconds, 0) for run in runs]),
    ]
    for name in (WHOLE_STEP, TOKENS):
        known = [run.measured.get(name) for run in runs]
        if any(known):
            found.append(_row(name, "median", [one and Best(name, one.median, 0) for one in known]))
    return found


def _steps(run: Compared) -> Best | None:
    return None if run.steps is None else Best("steps", run.steps, 0)


def _row(name: str, how: str, values: Sequence[Best | None]) -> dict[str, Any]:
    title = TITLES.get(name) or f"{title_of(name)}, {how}"
    return {
        "metric": name,
        "of": how,
        "title": title,
        "cells": [_cell(name, how, value) for value in values],
    }


def _cell(name: str, how: str, found: Best | None) -> dict[str, Any]:
    """Return a value with its step, and how people read it."""
    if found is None:
        return {"value": None, "step": None, "text": NOTHING}
    value, step = found.value, found.step if how in ("last", "best") else None
    text = duration(value) if name in ("time", WHOLE_STEP) else significant(value)
    text = f"{value:.0f}" if name == "steps" else text
    if how == "best":
        text += f" ({f'step {step}' if step else 'before training'})"
    return {"value": value, "step": step, "text": text}


def _differing(runs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return the flags that are not the same in all runs which tell theirs."""
    telling = [run for run in runs if run.flags]
    names = sorted({name for run in telling for name in run.flags if not PLACES.search(name)})
    own = _own_places(runs)
    found = []
    for name in names:
        raw = [run.flags.get(name) for run in telling]
        given = [
            None if text is None else _value(_without_place(text, own[run.path]))
            for run, text in zip(telling, raw, strict=True)
        ]
        if len(set(raw)) > 1 and len(set(given)) > 1:
            recipes = {run.recipe for run in telling if name in run.flags}
            cells = [_flag(run, name, recipes) for run in runs]
            found.append({"name": name or "command", "cells": cells})
    return found


def _flag(run: Compared, name: str, recipes: set[str]) -> dict[str, Any]:
    if name in run.flags:
        return {"text": run.flags[name] or "no value", "is_absent": False}
    absent = "default" if run.recipe in recipes else NOTHING
    return {"text": absent if run.flags else "unknown", "is_absent": True}


def _own_places(runs: Sequence[Compared]) -> dict[Path, str]:
    """Return each run's own directory: the one below what all runs have in common."""
    paths = [run.path for run in runs]
    common = Path(os.path.commonpath(paths)) if paths else Path()
    found = {}
    for path in paths:
        below = path.relative_to(common).parts
        found[path] = str(common / below[0]) if below else str(path)
    return found


def _value(text: str) -> str | float:
    """Return a number for its texts: `3e-4` is `0.0003`."""
    try:
        return float(text)
    except ValueError:
        return text


def _without_place(text: str, own: str) -> str:
    """Return a value without what is of the run's own place: directory, and ports of loopback."""
    return LOOPBACK.sub(r"\1", text.replace(own, "RUN"))


def lines(found: Mapping[str, Any], width: int) -> Iterator[str]:
    """Pure: yield the comparison as two tables. `width`: characters of a line, at most if it can.

    A table that is wider has a line for each cell.
    """
    runs = found["runs"]
    names = [run["name"] for run in runs]
    titles = [
        name if names.count(name) == 1 else shown(run["path"])
        for name, run in zip(names, runs, strict=True)
    ]
    yield from _table(titles, found["values"], "title", width)
    yield ""
    if any(run["flags_known"] for run in runs):
        yield "flags that differ:" if found["flags"] else "the runs began with the same flags"
    else:
        yield "the flags of these runs are not known"
    if found["flags"]:
        yield from _table(titles, found["flags"], "name", width)


def _table(
    titles: Sequence[str], rows: Sequence[Mapping[str, Any]], first: str, width: int
) -> Iterator[str]:
    table = [
        ("", *titles),
        *((row[first], *(cell["text"] for cell in row["cells"])) for row in rows),
    ]
    widths = [max(len(row[place]) for row in table) for place in range(len(titles) + 1)]
    if sum(widths) + 2 * len(titles) <= width:
        for row in table:
            yield "  ".join(
                text.ljust(size) for text, size in zip(row, widths, strict=True)
            ).rstrip()
        return
    longest = max(map(len, titles))
    for name, *texts in table[1:]:
        yield name
        yield from (
            f"  {title.ljust(longest)}  {text}" for title, text in zip(titles, texts, strict=True)
        )
