"""What page and report say of the run itself: its name, recipe, model, data and algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from contract.files import stored_json
from contract.run_dir import JOB_ENTRY, RunFiles, name_of

MODEL_FLAGS = ("pretrain", "model_name_or_path", "model.path", "partial_pretrain")
DATA_FLAGS = ("prompt_data", "prompt_dataset", "dataset", "dataset_name", "train_files")
ALGORITHM_FLAGS = ("advantage_estimator", "adv_estimator", "advantage.estimator")
"""How the names of flags end, of all trainers."""
OTHER_MODELS = ("critic", "ref", "reward", "teacher")
"""How the names of flags begin that name a model which is not the policy."""
BUILTIN, DEFAULT_ESTIMATOR = "builtin", "gae"
KNOWN_AS = {
    "gae": "PPO",
    "group_norm": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "reinforce": "REINFORCE++",
    "rloo": "RLOO",
    "remax": "ReMax",
}
"""Estimator → the algorithm for which it is known."""
STAGES = {"sft": "SFT", "rm": "reward model", "dpo": "DPO"}
"""First word of a supervised stage → its name."""
OF_TRL = {
    **{"sft": "SFT", "dpo": "DPO", "grpo": "GRPO", "kto": "KTO", "rloo": "RLOO"},
    "reward": "reward model",
}
"""Command of TRL → the name of what it does."""


def read(run: RunFiles) -> dict[str, str]:
    """Return the facts that run.json has. Raises OSError, but not if there is no run.json."""
    row = stored_json.json_object_or_empty(run.run)
    facts = {
        "run_dir": str(run.root.absolute()),
        "name": _name(run, row),
        "id": row.get("run_id"),
        "recipe": row.get("recipe"),
        "created": _moment(row.get("created")),
        "model": row.get("model"),
    }
    facts |= _of_flags(row)
    return {name: value for name, value in facts.items() if isinstance(value, str) and value}


def name(run: RunFiles) -> str:
    """Return the run's name: the given one, else that of its directory."""
    try:
        return _name(run, stored_json.json_object_or_empty(run.run))
    except OSError:
        return name_of(run.root)


def _name(run: RunFiles, row: Mapping[str, Any]) -> str:
    """Return the run's name; `row`: its run.json.

    A submitted job that has not begun has the name that it was submitted with.
    """
    entry = {} if row.get("name") else stored_json.json_object_or_empty(run.root / JOB_ENTRY)
    names = (row.get("name"), entry.get("name"), entry.get("stage"))
    return next((one for one in names if isinstance(one, str) and one), name_of(run.root))


def _moment(text: object) -> str:
    """Return an ISO time; "" if that is none."""
    try:
        return text if isinstance(text, str) and datetime.fromisoformat(text) else ""
    except ValueError:
        return ""


def _of_flags(row: Mapping[str, Any]) -> dict[str, str]:
    """Pure: return what the flags of run.json say; "" for what they do not say."""
    given = _texts(row.get("flags"))
    command = row.get("command")
    words = command if isinstance(command, list) and command else [""]
    estimator = _given(given, ALGORITHM_FLAGS)
    is_job = bool(given or words[0])  # a cluster that waits for jobs has none of its own
    if is_job and not estimator and row.get("recipe") == BUILTIN:
        estimator = DEFAULT_ESTIMATOR
    known, stages, first = KNOWN_AS.get(estimator), STAGES, words[0]
    if Path(str(words[0])).name == "trl":
        stages, first = OF_TRL, "".join(words[1:2])
    return {
        "model_path": _given(given, MODEL_FLAGS),
        "data": _given(given, DATA_FLAGS),
        "algorithm": f"{known} ({estimator})" if known else estimator or stages.get(first, ""),
    }


def _given(flags: Mapping[str, str], ends: Iterable[str]) -> str:
    """Pure: return the value of the first flag whose name is one of these, or ends in one."""
    for end in ends:
        for name, text in flags.items():
            if f".{name}".endswith(f".{end}") and not name.startswith(OTHER_MODELS):
                return text
    return ""


def flags(run: RunFiles) -> dict[str, str]:
    """Return the flags that the run was begun with, as run.json has them. Raises OSError."""
    return _texts(stored_json.json_object_or_empty(run.run).get("flags"))


def _texts(found: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}
