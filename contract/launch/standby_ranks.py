"""Standby ranks of a node: what its Ray is started with, and what the trainer's driver reads.

A standby rank is a process with the imports of a rank and without a model. A rank that starts on
the node, in this attempt or in a later one, takes such a process in place of a new one.
"""

from __future__ import annotations

LABEL = "rollcall/standby-ranks"
"""Ray's label of a node: the most standby ranks that the node may hold."""
VARIABLE = "ROLLCALL_STANDBY_RANK"
"""Is set in the processes of ranks: they import what ranks need as soon as they start."""
RANK_BYTES = 400 * 10**6
"""CPU memory of a standby rank that is no fork: about 320 MB, and 30 MB more once a job has it."""
MEMORY_SHARE = 0.1
"""Of a node's memory that standby ranks may take."""


def most(memory: int) -> int:
    """Return the standby ranks that a node may hold. `memory`: bytes of the node; 0 if unknown."""
    return int(MEMORY_SHARE * memory / RANK_BYTES)
