"""The colours of a run's time, one for each use and phase, on the page and in the report.

Each has a contrast of at least 3 to 1 on the light and on the dark ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from contract.metrics import CHARTS, Chart, charts_of
from entrypoint.run.flight_record import tally

TIMING = "timing/"
GREY = "#7d8590"
LINES = (
    *("#2f7de1", "#d9580d", "#16915a", "#b23fc4"),
    *("#a87f00", "#d6336c", "#0f8fa5", "#7a6ff0"),
)
"""Of curves that have no colour of their own, one after the other."""
PHASES: Mapping[str, str] = {
    "generate": "#2f7de1",
    "wait": GREY,
    "reward": "#d9580d",
    "forward": "#a87f00",
    "update": "#16915a",
    "publish": "#b23fc4",
}
"""Of the phases of a step."""
USES: Mapping[str, str] = {
    tally.TRAINING: "#16915a",
    tally.UNTOLD: "#2f7de1",
    tally.AGAIN: "#a87f00",
    tally.IN_FLIGHT: "#d6336c",
    tally.NOTICING: "#d9580d",
    tally.NO_HEAD: GREY,
    "roll call": "#3f8fd0",
    "services": "#0f8fa5",
    "start of the job": "#7a6ff0",
    "evaluation": "#b23fc4",
    "checkpoints": "#6b8e23",
    "end of the job": "#a0704a",
}
"""Of the uses of a run's time."""


def of_series(names: Sequence[str]) -> list[str]:
    """Pure: return the colours of a chart's metrics: a phase has its own, the others what is left.

    None repeats in up to len(LINES) metrics.
    """
    phases = [PHASES.get(name.removeprefix(TIMING)) if _is_phase(name) else None for name in names]
    left = (colour for colour in cycle(LINES) if colour not in phases)
    return [colour or next(left) for colour in phases]


def _is_phase(name: str) -> bool:
    return name.startswith(TIMING)


def drawn(names: Iterable[str], charts: Sequence[Chart] = CHARTS) -> list[dict[str, Any]]:
    """Pure: return the charts of these metrics as JSON: title, group, and how each is drawn."""
    return [
        {
            "title": chart.label,
            "group": chart.group,
            "metrics": [
                {"name": name, "label": chart.short(name), "colour": colour}
                for name, colour in zip(own, of_series(own), strict=True)
            ],
        }
        for chart, own in charts_of(names, charts)
    ]
