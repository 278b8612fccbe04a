"""Whether this machine has more to do than its CPUs can: what is slow may not be at fault."""

from __future__ import annotations

import os

BUSY = 2.0
"""Processes that wait for a CPU or have one, for each CPU, from which a machine is busy."""


def busy() -> str:
    """Return that this machine is busy, with its load; "" if it is not."""
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return sentence(load, cpus)


def sentence(load: float, cpus: int) -> str:
    """Pure: return that a machine with this load is busy; "" if it is not."""
    return f"this machine is busy (load {load:.0f} on {cpus} CPUs)" if load > BUSY * cpus else ""
