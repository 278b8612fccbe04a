"""Where this process stands: among the collectives of its model's ranks, and in its own code."""

from __future__ import annotations

import time

from contract.launch import collectives, rank_standing
from contract.launch.collectives import Standing


def of_process(thread: int | None) -> Standing:
    """Returns where this process stands. `thread`: the one that computes.

    A process without torch has no collectives. It is not imported for this.
    """
    records = [record.encode() for record in rank_standing.records()]
    return collectives.joint(records, time.time(), rank_standing.place(thread))
