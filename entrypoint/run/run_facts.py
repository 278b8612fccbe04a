"""What the page says of the run itself: its name, recipe and model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.files import stored_json
from contract.run_dir import RunFiles
from entrypoint.run.flight_record.run_end import ENTRY


def read(run: RunFiles) -> dict[str, str]:
    """Return the facts that run.json has. Raises OSError, but not if there is no run.json.

    A submitted job that has not begun has the name that it was submitted with.
    """
    row = _object(run.run)
    entry = {} if row.get("name") else _object(run.root / ENTRY)
    names = (row.get("name"), entry.get("name"), entry.get("stage"))
    facts = {
        "name": next((name for name in names if isinstance(name, str) and name), run.root.name),
        "id": row.get("run_id"),
        "recipe": row.get("recipe"),
        "created": row.get("created"),
        "model": row.get("model"),
    }
    return {name: value for name, value in facts.items() if isinstance(value, str) and value}


def flags(run: RunFiles) -> dict[str, str]:
    """Return the flags that the run was begun with, as run.json has them. Raises OSError."""
    found = _object(run.run).get("flags")
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _object(path: Path) -> dict[str, Any]:
    """Return what the file has; {} if it is not there, or has something else. Raises OSError."""
    try:
        return stored_json.json_object(path) or {}
    except FileNotFoundError:
        return {}
