"""What the page says of the run itself: its name, recipe and model."""

from __future__ import annotations

from typing import Any

from contract.files import stored_json
from contract.run_dir import RunFiles


def read(run: RunFiles) -> dict[str, str]:
    """Return the facts that run.json has. Raises OSError, but not if there is no run.json."""
    try:
        row: dict[str, Any] = stored_json.json_object(run.run) or {}
    except FileNotFoundError:
        row = {}
    facts = {
        "name": row.get("name") or run.root.name,
        "id": row.get("run_id"),
        "recipe": row.get("recipe"),
        "created": row.get("created"),
        "model": row.get("model"),
    }
    return {name: value for name, value in facts.items() if isinstance(value, str) and value}
