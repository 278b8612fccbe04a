"""The head's state for Prometheus.

A run's own numbers, such as its reward, are fields of `contract.progress.Progress`; each becomes a
gauge. `trainer.metrics.recorder` fills them.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


def text(state: dict[str, Any]) -> str:
    """Return `state` as gauges in Prometheus's exposition format."""
    registry = CollectorRegistry()
    registry.register(_StateCollector(state))
    return generate_latest(registry).decode()


class _StateCollector(Collector):
    """Makes the gauges of one scrape."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def collect(self) -> list[GaugeMetricFamily]:
        values = {
            "rollcall_expected_workers": ("Workers on the roll", self._state["expected_workers"]),
            "rollcall_present_workers": (
                "Workers that joined and are there",
                self._state["present"],
            ),
        }
        for name, value in (self._state["progress"] or {}).items():
            if isinstance(value, int | float):
                values[f"rollcall_{name}"] = (f"Progress: {name.replace('_', ' ')}", value)
        return [GaugeMetricFamily(n, text, value=v) for n, (text, v) in values.items()]
