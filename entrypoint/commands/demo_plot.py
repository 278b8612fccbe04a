"""The learning curve of a run, from its metrics, in the terminal and as a picture."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]

REWARD = "train/reward"
ACCURACY = "eval/accuracy"


def series(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of one metric, from the rows that have it."""
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def in_terminal(rows: Rows) -> str:
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(90, 20)
    plotext.plot(*series(rows, REWARD), label="reward")
    plotext.plot(*series(rows, ACCURACY), label="held-out accuracy", marker="x")
    plotext.xlabel("step")
    plotext.ylim(0, 1)
    return str(plotext.uncolorize(plotext.build()))


def as_png(rows: Rows, path: Path) -> None:
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*series(rows, REWARD), color="tab:blue", alpha=0.6, label="reward")
    axes.plot(*series(rows, ACCURACY), "o-", color="tab:orange", label="held-out accuracy")
    axes.set(xlabel="step", ylim=(0, 1.02), title="Sums: reward and held-out accuracy")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
