"""`plan`: what this node would do, secrets masked, doing none of it: no DNS, no socket."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

from entrypoint import role
from entrypoint.role import Head, Worker
from entrypoint.settings import Settings
from entrypoint.variables import MASK, Fault, SettingsError, redact
from trainer.contract import ExitCode

KEYS = (
    "role",
    "why",
    "head_address",
    "expected_workers",
    "min_workers",
    "node_name",
    "node_address",
    "recipe",
    "job",
    "run_dir",
    "platform",
    "ports",
    "wandb_api_key",
    "token",
    "sources",
    "faults",
)


def plan(settings: Settings | SettingsError) -> dict[str, Any]:
    """What the node would do, with `KEYS`; what faults leave open is None."""
    if isinstance(settings, SettingsError):
        return _row(faults=settings.faults)
    given = _given(settings)
    try:
        decided = role.decide(settings)
    except SettingsError as error:
        return _row(**given, faults=error.faults)
    given["why"] = decided.why
    if isinstance(decided, Head):
        given |= {
            "expected_workers": decided.expected_workers,
            "min_workers": decided.min_workers,
        }
    return _row(**given)


def main(settings: Settings | SettingsError, as_json: bool) -> int:
    """Print the plan; 64 where there are faults."""
    row = plan(settings)
    if as_json:
        print(json.dumps(row, indent=2))
    else:
        _print_text(row)
    return ExitCode.USAGE if row["faults"] else ExitCode.FINISHED


def _row(*, faults: tuple[Fault, ...] = (), **known: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(KEYS)
    rows = [
        {
            "variable": fault.variable,
            "value": fault.value,
            "problem": fault.problem,
            "remedy": fault.remedy,
        }
        for fault in faults
    ]
    return row | {"sources": {}} | known | {"faults": rows}


def _given(settings: Settings) -> dict[str, Any]:
    head = role.head_address(settings)
    return {
        "role": Worker.name if role.is_worker(settings) else Head.name,
        "head_address": head.value if head else None,
        "node_name": settings.node_name,
        "node_address": settings.node_address,
        "recipe": settings.recipe,
        "job": redact(shlex.join(settings.job), settings.secrets),
        "run_dir": str(settings.run_dir),
        "platform": settings.platform.name,
        "ports": {
            "ray": settings.ray_port,
            "dashboard": settings.dashboard_port,
            "control": settings.control_port,
            "workers": str(settings.worker_ports),
        },
        "wandb_api_key": MASK if settings.wandb_api_key else None,
        "token": MASK if settings.token else None,
        "sources": role.sources(settings),
    }


def _print_text(row: dict[str, Any]) -> None:
    """One fact a line, with what decided it; faults go to the standard error."""
    if row["role"] is not None:
        lines = [
            (name.replace("_", " "), _text(row[name]), row["sources"].get(name, ""))
            for name in KEYS
            if name not in ("sources", "faults") and row[name] not in (None, "")
        ]
        _print_table(lines)
    for fault in row["faults"]:
        print(Fault(**fault), file=sys.stderr)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)


def _print_table(lines: list[tuple[str, str, str]]) -> None:
    if not sys.stdout.isatty():
        for name, value, source in lines:
            print(f"{name:<17} {value}" + (f"  ({source})" if source else ""))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("fact", "value", "decided by")
    for line in lines:
        table.add_row(*line)
    Console(markup=False, highlight=False).print(table)
