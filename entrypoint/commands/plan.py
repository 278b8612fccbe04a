"""`plan`: what this node would do, secrets masked, doing none of it: no DNS, no connection.

Only the user's own reward function and environment are run, in a process of their own.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from contract.exit_codes import ExitCode
from contract.files import notice
from contract.options import ConfigError, Fault, ended
from contract.redaction import MASK
from contract.resources import NodeResources
from entrypoint.cluster import access
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.commands import arguments, node_shell, plan_layout, plan_secrets, plan_verdict
from entrypoint.commands.cli import COLUMNS, LIKE_THIS_ONE, PlannedNodes
from entrypoint.config import role
from entrypoint.config.parsers import Tls
from entrypoint.config.partly import SettingsError
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.role import Head, Worker
from entrypoint.config.settings import Settings, declared
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.base import FilesGoneError, NotHere, PlacedJob
from entrypoint.run import token as run_token

KEYS = (
    "role",
    "why",
    "head_address",
    "ray_address",
    "expected_workers",
    "min_workers",
    "spare_workers",
    "node_name",
    "node_address",
    "recipe",
    "job",
    "code",
    "notes",
    "unended_import",
    "needs_hub",
    "steps",
    "layout",
    "run_dir",
    "lacks_run_dir",
    "storage",
    "platform",
    "ports",
    "wandb_api_key",
    "token",
    "sources",
    "warnings",
    "faults",
)
NOT_FACTS = (
    *("why", "sources", "warnings", "faults", "layout"),
    *("code", "notes", "unended_import", "needs_hub", "steps", "lacks_run_dir"),
)
"""Keys that are no line of their own."""
ALWAYS = ("role", "head_address", "expected_workers", "recipe", "job", "run_dir")
"""Facts that have a line even if nothing but a default decided them."""
PORTS = {
    **{"ray": "ray_port", "dashboard": "dashboard_port"},
    **{"control": "control_port", "workers": "worker_ports"},
}
"""Name of a port in the plan → its field of Settings."""
NOT_WRITTEN = (
    "no layout and no trial of the code yet: this stage reads what an earlier one has to write"
)
ASSUME = f"To plan without the data, give the names of its columns, as in {COLUMNS} prompt,answer"
OF_HERE = "checked on this machine alone, which is none of the planned nodes"
OTHER_NODES = (
    "every node is taken to be like this one. For other nodes: plan --nodes 3 --gpus 8 "
    "--gpu-memory 80GB --memory 1000GB"
)
NODES_UNKNOWN = (
    "the plan has no layout: the nodes of ROLLCALL_RAY_ADDRESS are asked when the run starts; "
    "--gpus 8 plans for as many on each"
)


def plan(
    settings: Settings | ConfigError,
    other: PlannedNodes = LIKE_THIS_ONE,
    awaited: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return what the node would do, with `KEYS`; None for what faults leave open.

    `awaited`: directories whose files other jobs will write. Without them there is no layout.
    """
    return plan_secrets.masked(_planned(settings, other, awaited), settings)


def _planned(
    settings: Settings | ConfigError, other: PlannedNodes, awaited: Sequence[Path]
) -> dict[str, Any]:
    if isinstance(settings, SettingsError):
        beside = _of_the_job(recipes.faults_beside(settings.settings), other)
        return _row(faults=(*_as_typed(settings.faults, other), *beside))
    if isinstance(settings, ConfigError):
        return _row(faults=_as_typed(settings.faults, other))
    if "EXPECTED_WORKERS" in other.flags:  # not this platform's nodes
        settings = replace(settings, platform=replace(settings.platform, nodes=None))
    given = _given(settings)
    given["sources"] = {
        fact: other.flags.get(source, source) for fact, source in given["sources"].items()
    }
    try:
        if settings.token is not None:
            run_token.given(settings.token)
        decided = role.decide(settings)
        if not other.elsewhere and (found := list(_of_this_machine(settings, decided))):
            raise ConfigError(found)
    except ConfigError as error:
        beside = _of_the_job(recipes.faults_beside(settings), other)
        return _row(**given, faults=(*_as_typed(error.faults, other), *beside))
    given["why"] = decided.why
    if isinstance(decided, Worker):
        return _row(warnings=list(role.warnings(settings)), **given)
    given["expected_workers"] = decided.expected_workers
    given["min_workers"] = decided.min_workers
    given["spare_workers"] = decided.spare_workers
    given["lacks_run_dir"] = not (other.elsewhere or settings.run_dir.exists())
    warnings = [*_of_the_role(settings), *([] if other.elsewhere else _of_run_dir(settings))]
    lacks_a_job = RECIPES[settings.recipe].may_lack_a_job and not settings.job
    if settings.waits_for_jobs or lacks_a_job:
        return _row(warnings=warnings, **given)  # there is no job to plan
    return _row(**given, **_job_row(settings, decided, other, awaited, warnings))


def main(
    settings: Settings | ConfigError,
    as_json: bool,
    other: PlannedNodes = LIKE_THIS_ONE,
    *,
    cost: bool = False,
    said: str = "",
) -> int:
    """Print the plan, with the `cost` of a step or without; return 64 if there are faults.

    `said`: what the words of the job are.
    """
    row = plan(settings, other)
    if as_json:
        print(json.dumps(row, indent=2))
    else:
        show(row, cost=cost, said=said)
    return ExitCode.USAGE if row["faults"] else ExitCode.FINISHED


def _of_this_machine(settings: Settings, decided: Head | Worker) -> Iterator[Fault]:
    """Yield what `up` refuses on this machine, as far as nobody else has to be asked."""
    path = settings.preempt_file
    if path and path.parent.exists() and (problem := notice.unusable(path)):
        yield Fault("ROLLCALL_PREEMPT_FILE", str(path), problem, notice.REMEDY)
    if settings.tls_mode is Tls.GIVEN:
        from entrypoint.run.tls import given  # few plans need ssl

        own = settings.node_address or ""
        yield from _refused(lambda: given.texts(settings, own if _is_literal(own) else ""))
    if isinstance(decided, Head):
        token = settings.token.reveal() if settings.token else ""
        yield from _refused(lambda: access.given_keys(settings, token))
    named, bind = role.head_address(settings), role.bind_address(settings)
    hosts = [bind, named.value if named else bind]
    if isinstance(decided, Head) and bind and all(map(_is_literal, hosts)):
        from entrypoint.machine import address  # it looks up names

        if fault := address.bind_fault(settings):
            yield fault


def _refused(check: Callable[[], object]) -> Iterator[Fault]:
    """Yield the faults for which a check of `up` refuses."""
    try:
        check()
    except ConfigError as error:
        yield from error.faults


def _is_literal(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def _job_row(
    settings: Settings,
    head: Head,
    other: PlannedNodes,
    awaited: Sequence[Path],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return what the row has of the job, with its faults and all warnings.

    `warnings`: those of the node; `awaited`: as in `plan`.
    """
    recipe, warnings = recipes.load(settings.recipe).assuming(other.columns), [*warnings]
    wrong = arguments.hinted(recipe.faults(settings), "plan")
    if other.elsewhere:
        warnings += [f"{OF_HERE}: {one}" for one in wrong if isinstance(one, NotHere)]
        wrong = [one for one in wrong if not isinstance(one, NotHere)]
    missing = [one for one in wrong if recipes.awaits(one, awaited)]
    if wrong := [one for one in wrong if one not in missing]:
        if away := next(filter(recipe.may_assume, wrong), None):
            wrong[wrong.index(away)] = f"{ended(away)} {ASSUME}"
        if all(isinstance(one, NotHere) for one in wrong):  # the job itself may be wrong, too
            warnings += recipe.warnings(settings)
        faults = tuple(Fault("job", None, sentence, "") for sentence in wrong)
        return {"faults": faults, "warnings": warnings}
    if missing:
        return {"warnings": [*warnings, NOT_WRITTEN]}
    of_hub = recipe.hub_notes(settings)
    known: dict[str, Any] = {"notes": [*recipe.notes(settings), *of_hub] or None}
    known["needs_hub"] = bool(of_hub)
    known["steps"] = dict(zip(("count", "why"), recipe.steps(settings), strict=True))
    tried = recipe.try_code(settings) if settings.check_code else recipes.TriedCode()
    known["code"] = list(tried.lines) or None
    known["unended_import"] = tried.unended_import
    warnings += tried.warnings
    if tried.faults:
        faults = tuple(Fault("job", None, sentence, "") for sentence in tried.faults)
        return dict(faults=faults, warnings=warnings, **known)
    if settings.ray_address and settings.num_gpus is None:
        of_job = recipes.warnings(recipe, PlacedJob(settings=settings))
        return dict(warnings=[*warnings, *of_job, NODES_UNKNOWN], **known)
    try:
        placed = recipe.placed(settings, _nodes(settings, head, other))
        of_job = recipes.warnings(recipe, placed)
    except FilesGoneError as gone:  # a file that is still being written
        return dict(faults=(Fault("job", None, str(gone), ""),), warnings=warnings, **known)
    faults = _layout_faults(placed, head, other)
    is_refused = any(fault.path == plan_verdict.MEMORY for fault in faults)
    short = () if is_refused else plan_layout.short_of_memory(placed.layout)
    return dict(faults=faults, layout=placed.layout, warnings=[*warnings, *of_job, *short], **known)


def _row(*, faults: tuple[Fault, ...] = (), **known: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(KEYS)
    rows = [fault_row(fault) for fault in faults]
    return row | {"sources": {}, "warnings": []} | known | {"faults": rows}


def _of_the_job(wrong: Sequence[str], other: PlannedNodes) -> tuple[Fault, ...]:
    """Return faults of the job's words; not of this machine, if the plan is for others."""
    here = [one for one in wrong if not (other.elsewhere and isinstance(one, NotHere))]
    return tuple(Fault("job", None, one, "") for one in arguments.hinted(here, "plan"))


def _as_typed(faults: Sequence[Fault], other: PlannedNodes) -> tuple[Fault, ...]:
    """Return the faults of variables; of one that a flag of `plan` gave, with the flag."""
    return tuple(
        replace(one, path=other.flags[one.path], remedy=one.remedy[:1].upper() + one.remedy[1:])
        if one.path in other.flags
        else one
        for one in faults
    )


def fault_row(fault: Fault) -> dict[str, Any]:
    """Return a fault as JSON has it."""
    return {
        "variable": fault.path,
        "value": fault.value,
        "problem": fault.problem,
        "remedy": fault.remedy,
    }


def _nodes(settings: Settings, head: Head, other: PlannedNodes) -> Sequence[NodeResources]:
    """Return what the nodes offer if every node is like this one, but for what `other` says."""
    from entrypoint.machine.gpus import discover
    from entrypoint.machine.inventory import (  # a plan without a job starts faster
        gpu_model,
        inventory,
    )
    from entrypoint.machine.view import THIS_MACHINE

    here = NodeInfo(
        node=settings.node_name,
        address="",
        versions={"gpu": gpu_model(THIS_MACHINE.proc, THIS_MACHINE.sys)},
        inventory=inventory(settings),
        resources=settings.resources,
    ).offer
    if here.gpus > discover.count():  # the plan is for other machines than this one
        here = replace(here, memory=0, gpu_model="")
    here = replace(here, memory=other.memory or here.memory)
    workers = [replace(here, name=f"worker-{n}") for n in range(1, head.expected_workers + 1)]
    nodes = [here, *workers]
    for place, count in enumerate(other.gpus[: len(nodes)]):
        nodes[place] = replace(nodes[place], gpus=count)
    return nodes


def _layout_faults(placed: PlacedJob, head: Head, other: PlannedNodes) -> tuple[Fault, ...]:
    settings = placed.settings
    is_known = other != LIKE_THIS_ONE or not head.expected_workers  # workers are not seen yet
    above = plan_layout.certainly_above(placed.layout) if is_known else ""
    if above and not placed.lacking:
        assert placed.layout is not None
        elsewhere = f"; {OTHER_NODES}" if other == LIKE_THIS_ONE else ""
        remedy = f"{plan_layout.remedy(placed.layout)}{elsewhere}"
        return (Fault(plan_verdict.MEMORY, None, above, remedy),)
    ways = [] if placed.says_remedy else [recipes.load(settings.recipe).less_placement]
    if other == LIKE_THIS_ONE and settings.num_gpus is None:
        ways.append(OTHER_NODES)
    remedy = "; ".join(ways)
    return tuple(Fault("layout", None, sentence, remedy) for sentence in placed.lacking)


def _given(settings: Settings) -> dict[str, Any]:
    head = role.head_address(settings)
    played = Worker.name if role.is_worker(settings) else Head.name
    return {
        "role": None if role.undecided(settings) else played,
        "head_address": head.value if head else None,
        "ray_address": settings.ray_address,
        "node_name": settings.node_name,
        "node_address": settings.node_address,
        "recipe": settings.recipe,
        "job": shlex.join(settings.job) or _waits(settings),
        "run_dir": str(settings.run_dir),
        "storage": settings.storage,
        "platform": settings.platform.name,
        "ports": {one: getattr(settings, field) for one, field in PORTS.items()}
        | {"workers": str(settings.worker_ports)},
        "wandb_api_key": MASK if settings.wandb_api_key else None,
        "token": MASK if settings.token else None,
        "sources": role.sources(settings),
    }


def _of_the_role(settings: Settings) -> list[str]:
    """What does not count, and what `up` looks up before it is a head by default."""
    lacking = node_shell.lacking(settings.environ)
    named = role.head_named_to_a_default(settings)
    if named is None or _is_own(settings, named.value):
        return [*([lacking] if lacking else []), *role.warnings(settings)]
    given = f"{named.source}={settings.environ[named.source].strip()}"
    said = "must name this machine: RAY_WORKER is not set, so this node is the head"
    return [f"{given} {said}; on a worker set RAY_WORKER=1", *role.warnings(settings)]


def _is_own(settings: Settings, host: str) -> bool:
    """Return whether the head's address is this machine's, as far as no DNS is needed for it."""
    if host in (settings.node_address, role.bind_address(settings)):
        return True
    from entrypoint.machine import address, interfaces  # few plans need psutil

    return address.is_loopback(host) or bool(interfaces.holding(host, address.this_machines()))


def _of_run_dir(settings: Settings) -> list[str]:
    """Return a warning if this machine is to run alone, without its default run directory."""
    path = settings.run_dir
    if settings.expected_workers != 0 or settings.variable("run_dir") or path.exists():
        return []
    return [f"ROLLCALL_RUN_DIR is not set, and {path} is not there: `rollcall up` needs either"]


def _waits(settings: Settings) -> str:
    return plan_verdict.WAITS if settings.waits_for_jobs else ""


def show(row: dict[str, Any], *, cost: bool, said: str = "") -> None:
    """Print one fact a line, with what decided it, and the verdict, which is the last line.

    Between the two, faults and warnings go to standard error.
    """
    if said:
        print(said)
    if row["role"] is not None:
        sources = {**row["sources"], "role": row["why"] or row["sources"].get("role", "")}
        lines = [
            (name.replace("_", " "), _text(row[name]), sources.get(name, ""))
            for name in KEYS
            if name not in NOT_FACTS and _tells(row, name)
        ]
        lines += _steps(row["steps"])
        lines += [("tried", line, "") for line in row["code"] or ()]
        lines += [("note", line, "") for line in row["notes"] or ()]
        layout = row["layout"]
        _print_table(
            lines + plan_layout.lines(layout) + (plan_layout.cost_lines(row) if cost else [])
        )
    sys.stdout.flush()
    for fault in row["faults"]:
        print(Fault(*fault.values()), file=sys.stderr)
    for warning in row["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    sys.stderr.flush()
    print(f"{'verdict':<17} {plan_verdict.sentence(row)}", flush=True)


def _tells(row: Mapping[str, Any], name: str) -> bool:
    """Return whether the fact has a line: it is known, and not what it is without any setting."""
    value = row[name]
    if value in (None, "") or (name == "spare_workers" and not value):
        return False
    if name == "ports":
        usual = {one: declared()[field].default for one, field in PORTS.items()}
        return bool(value != usual | {"workers": str(usual["workers"])})
    if name == "min_workers":
        return bool(value != row["expected_workers"])
    return name in ALWAYS or row["sources"].get(name) != role.DEFAULT


def _steps(steps: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return the line of the steps; none if they are not known: the verdict says why."""
    if steps is None or steps["count"] is None:
        return []
    return [("steps", str(steps["count"]), steps["why"])]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {port}" for name, port in value.items())
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
