"""The layouts that were chosen for a run, so that each attempt on the same nodes has the same one.

A choice may otherwise differ from the one before it: a model's size is known by its name at first,
and by its files once they are downloaded. `RUN/.layouts` has a choice for each job and its nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from contract.resources import NodeResources
from contract.run_dir import write_atomically

MEMORY_UNIT = 2**33
"""Differences of a node's memory below this many bytes count as none."""


@dataclass(frozen=True, slots=True)
class KeptLayout:
    words: tuple[str, ...]
    """The chosen flags, as words of a command line."""
    reasons: tuple[str, ...]


def key_of(flags: Mapping[str, str], nodes: Sequence[NodeResources]) -> str:
    """Returns a hash of a job's flags and of what the nodes offer, whatever their names."""
    offers = []
    for node in nodes:
        offer = asdict(node) | {"memory": node.memory // MEMORY_UNIT}
        del offer["name"]
        offers.append(json.dumps(offer, sort_keys=True))
    text = json.dumps([dict(flags), sorted(offers)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> dict[str, KeptLayout]:
    """Returns key → layout; nothing if the file is absent or damaged."""
    try:
        rows = json.loads(path.read_text())
        return {
            key: KeptLayout(tuple(map(str, row["words"])), tuple(map(str, row["reasons"])))
            for key, row in rows.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def keep(path: Path, key: str, layout: KeptLayout) -> bool:
    """Keep a layout. Returns whether it replaces a layout that was kept for other nodes or flags.

    A disk that fails is tolerated: the next attempt chooses again.
    """
    kept = read(path)
    if key in kept:
        return False
    rows = {name: asdict(one) for name, one in {**kept, key: layout}.items()}
    with suppress(OSError):
        write_atomically(path, json.dumps(rows))
    return bool(kept)
