"""Pure: how the GPUs of a slow node run now, beside those of the other nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from entrypoint.machine.gpus.use import Condition, GpuUse


@dataclass(frozen=True, slots=True)
class _Figure:
    clock: float | None
    watts: float | None
    degrees: float | None

    def __str__(self) -> str:
        known = ((self.clock, "MHz"), (self.watts, "W"), (self.degrees, "°C"))
        return ", ".join(f"{value:g} {unit}" for value, unit in known if value is not None)


def sentence(node: str, uses: Mapping[str, Sequence[GpuUse]]) -> str:
    """Return the condition of the node's GPU with the lowest clock; "" if none tells it.

    `uses`: node → its GPUs as they told it last. The others are shown by their medians.
    """
    own = [use.condition for use in uses.get(node, ())]
    if not own:
        return ""
    worst = min(own, key=lambda one: one.clock if one.clock is not None else float("inf"))
    shown = str(_Figure(worst.clock, worst.watts, worst.degrees))
    others = [use.condition for name, of in uses.items() if name != node for use in of]
    beside = str(_medians(others))
    parts = [f"its slowest GPU now: {shown}" if shown else ""]
    parts.append(f"the other nodes' GPUs in the median: {beside}" if shown and beside else "")
    held = list(dict.fromkeys(reason for one in own for reason in one.held_by))
    parts.append(f"its clocks are held down by {', '.join(held)}" if held else "")
    return "; ".join(filter(None, parts))


def _medians(of: Sequence[Condition]) -> _Figure:
    rows = ([one.clock for one in of], [one.watts for one in of], [one.degrees for one in of])
    return _Figure(*map(_median, rows))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
