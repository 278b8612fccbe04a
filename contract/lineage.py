"""Whose checkpoints a run takes for its own: `RUN/.origin.json`, and the run's id in manifests.

A run that begins takes what it finds, of whichever run: so it can go on from a copy, or from
--ckpt_path of another run. It then keeps in a file from where it began. From there on it takes its
own checkpoints, and of those other runs what is not later than its beginning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from contract.files import stored_json
from contract.run_dir import RunFiles, write_atomically


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a run takes for its own; without `run`, all that it finds."""

    run: str | None = None
    """The run's id, of run.json. A trainer without a head has none."""
    begun: bool = False
    origins: frozenset[str] = frozenset()
    """Ids of the other runs whose checkpoints were there when it began."""
    step: int = 0
    """The step from which it began."""

    def takes(self, run: str | None, step: int) -> bool:
        """Return whether a checkpoint counts. `run`: as its manifest names it, if it does."""
        if self.run is None or not self.begun or run in (None, self.run):
            return True
        return run in self.origins and step <= self.step


def of(files: RunFiles) -> Lineage:
    """Return the run's lineage; a damaged file counts as absent. Raises OSError."""
    run = _text(_object(files.run).get("run_id"))
    row = _object(files.origin)
    step, origins = row.get("step"), row.get("runs")
    if not stored_json.is_count(step) or not isinstance(origins, list):
        return Lineage(run)
    return Lineage(run, True, frozenset(filter(_text, origins)), step)


def run_id(files: RunFiles) -> str | None:
    """Return the run's id as a trainer has kept it beside run.json; None if there is none."""
    return _text(_object(files.origin).get("run"))


def begin(files: RunFiles, lineage: Lineage) -> None:
    """Keep from where a run has begun. Raises OSError."""
    row = {"run": lineage.run, "step": lineage.step, "runs": sorted(lineage.origins)}
    write_atomically(files.origin, json.dumps(row) + "\n")


def _object(path: Path) -> dict[str, object]:
    try:
        return stored_json.json_object(path) or {}
    except FileNotFoundError:
        return {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
