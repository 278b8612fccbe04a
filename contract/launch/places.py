"""Which nodes do the job's work: what the launcher tells the job, and the job the launcher.

Nodes besides these are in Ray's cluster, too: spares, and nodes that join while the job runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

VARIABLE = "ROLLCALL_WORK_NODES"
"""The names of the nodes on which the job begins, as a JSON list; unset: all nodes of Ray."""
MOVED = "node-replaced"
"""Kind of the event that a node's work is on another node now. Its details are `lost` and `node`,
their names."""


def environment(nodes: Iterable[str]) -> dict[str, str]:
    """Return what tells a job on which nodes it begins."""
    return {VARIABLE: json.dumps(list(nodes))}


def read(environ: Mapping[str, str]) -> frozenset[str] | None:
    """Return the names of the nodes on which the job begins; None: all nodes of Ray."""
    text = environ.get(VARIABLE)
    return frozenset(json.loads(text)) if text else None
