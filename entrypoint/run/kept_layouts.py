"""The layouts that were chosen for a run, so that each attempt on the same nodes has the same one.

A choice may otherwise differ from the one before it: a model's size is known by its name at first,
and by its files once they are downloaded. `RUN/.layouts` has a choice, with a checksum, for each
job and its nodes.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contract.files import stored_json
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
    """Return a hash of a job's flags and of what the nodes offer, whatever their names."""
    offers = []
    for node in nodes:
        offer = asdict(node) | {"memory": node.memory // MEMORY_UNIT}
        del offer["name"]
        offers.append(json.dumps(offer, sort_keys=True))
    text = json.dumps([dict(flags), sorted(offers)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> dict[str, KeptLayout]:
    """Return key → layout, without those that are damaged; nothing if the file is absent."""
    try:
        rows = stored_json.json_object(path) or {}
    except OSError:
        return {}
    return {
        key: KeptLayout(tuple(row["words"]), tuple(row["reasons"]))
        for key, row in rows.items()
        if isinstance(row, dict) and row.get("crc") == _checksum(row)
    }


def _checksum(row: Mapping[str, Any]) -> int:
    texts = [row.get("words"), row.get("reasons")]
    return zlib.crc32(json.dumps(texts).encode())


def keep(path: Path, key: str, layout: KeptLayout) -> bool:
    """Keep a layout. Returns whether it replaces a layout that was kept for other nodes or flags.

    A disk that fails is tolerated: the next attempt chooses again.
    """
    kept = read(path)
    if key in kept:
        return False
    rows = {name: asdict(one) for name, one in {**kept, key: layout}.items()}
    sealed = {name: row | {"crc": _checksum(row)} for name, row in rows.items()}
    with suppress(OSError):
        write_atomically(path, json.dumps(sealed))
    return bool(kept)
