"""What came of the faults, kept beside the table; written where FAULTS_RECORD is set."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

from tests.container.faults.fault import Result

RECORDED = bool(os.environ.get("FAULTS_RECORD"))
PATH = Path(__file__).with_name("results.json")


def keep(sentence: str, result: Result) -> None:
    """Replace the row of this fault."""
    _keep(result.fault, {"sentence": sentence, **result.as_dict()})


def keep_loop(fault: str, seconds: float | None, patience: float) -> None:
    """Replace the row of a shell loop under this fault; None: not back within `patience`."""
    shown = None if seconds is None else round(seconds, 1)
    _keep(of_loop(fault), {"fault": fault, "seconds": shown, "patience": round(patience)})


def of_loop(fault: str) -> str:
    return f"{fault}-loop"


def _keep(name: str, row: dict[str, Any]) -> None:
    print(json.dumps(row))
    if RECORDED:
        rows = read() | {name: {**row, "measured": date.today().isoformat()}}
        PATH.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


def read() -> dict[str, Any]:
    try:
        rows: dict[str, Any] = json.loads(PATH.read_text())
    except FileNotFoundError:
        return {}
    return rows
