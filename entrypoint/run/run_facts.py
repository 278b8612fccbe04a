"""What the page says of the run itself: its name, recipe and model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from contract.files import stored_json
from contract.run_dir import RunFiles

MODEL_FLAGS = (
    *("--pretrain", "--actor.model_name_or_path"),
    *("--model_name_or_path", "actor_rollout_ref.model.path"),
)
"""Of the builtin trainer and OpenRLHF, of TRL, and of verl."""


def read(run: RunFiles) -> dict[str, str]:
    """Return the facts that run.json has. Raises OSError, but not if there is no run.json."""
    try:
        row: dict[str, Any] = stored_json.json_object(run.run) or {}
    except FileNotFoundError:
        row = {}
    command = row.get("command")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    facts = {
        "name": run.root.name,
        "id": row.get("run_id"),
        "recipe": row.get("recipe"),
        "created": row.get("created"),
        "model": model_of(words),
    }
    return {name: value for name, value in facts.items() if isinstance(value, str) and value}


def model_of(words: Sequence[str]) -> str:
    """Pure: return the last part of the model's name in a command; "" if it names none."""
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in MODEL_FLAGS:
            value = value if equals else "".join(words[number + 1 : number + 2])
            return PurePath(value.strip("'\"")).name  # Hydra's values may have quotes of their own
    return ""
