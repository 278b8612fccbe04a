"""What `status` prints: the head's state, or a job's, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.durations import counted, duration, steps_kept
from contract.progress import Progress
from entrypoint import console
from entrypoint.job.jobs import JobState
from entrypoint.run import lost_head
from entrypoint.run.flight_record import run_end
from entrypoint.run.flight_record.text import dated

TO_REPLACE = "start it again, or another node in its place"
STORAGE = "waiting for storage"
"""The phase of a head whose run directory takes no write: the journal cannot say why."""
MOST_NAMED = 8
"""Nodes of one warning that are named."""


def state_sentences(state: Mapping[str, Any]) -> list[str]:
    """Return what a head says of itself, its nodes and its run, a line each."""
    head = "head" if state["head"] == "head" else f"head {state['head']}"
    roll = f"{state['present']} of {counted(state['expected_workers'], 'worker')}"
    if not state["expected_workers"]:
        roll = "a cluster of one node"
    spares = state.get("spares", [])
    if expected := state.get("expected_spares", 0):
        of = "" if len(spares) >= expected else f"{len(spares)} of "
        roll += f", {of}{counted(expected if of else len(spares), 'spare')}"
    lines = [f"{head}: {_phase(state)}; {roll}"]
    for node in state["nodes"]:
        there = "there" if node["joined"] else "is starting Ray"
        there = "a spare" if node["node"] in spares else there
        if not node["present"]:
            there = f"silent for {duration(node['silent_seconds'])}; {TO_REPLACE}"
        lines.append(f"  {node['node']} at {node['address']}: {there}")
    shown = {node["node"] for node in state["nodes"]}
    others = (worker for worker in state["missing"] if worker["node"] not in shown)
    lines += [f"  missing: {worker['sentence']}" for worker in others]
    lines += [f"  meanwhile: {said}"] if (said := _meanwhile(state)) else []
    job, name = state.get("job"), state.get("run", {}).get("name", "")
    if job:
        lines.append(f"{job} runs{f' ({name})' if name not in ('', job) else ''}")
    elif name:
        began = state["run"].get("created")
        lines.append(f"run {name}{f', began {dated(began)}' if began else ''}")
    lines += [f"  {idle}"] if (idle := state.get("idle")) else []
    lines += _attempts(state)
    staying = state.get("slow_nodes", [])
    told = {one["node"] for one in staying}
    slow = [one for one in state.get("stragglers", []) if one["node"] not in told]
    lines += [f"slow: {one['sentence']}" for one in (*slow, *staying)]
    lines += [f"warning: {warning}" for warning in _warnings(state)]
    if state["outcome"]:
        lines.append(f"outcome: {state['outcome']['outcome']}")
    return [*lines, f"the page, to read only: {state['page']}"]


def _meanwhile(state: Mapping[str, Any]) -> str:
    """Return what the job does while a worker is away; "" if none is, or if no job has begun."""
    away = [node for node in state["nodes"] if not node["present"]]
    attempt = state.get("attempt")
    if not (away or state["missing"]) or not attempt or state["outcome"]:
        return ""
    present, expected = state["present"], state["expected_workers"]
    if present >= expected:
        return "another node has its place, and the job needs no other"
    roll = f"{present} of {counted(expected, 'worker')}"
    match state["phase"]:
        case "training":
            return f"attempt {attempt} still runs, with {roll}"
        case "roll call" | "recovering":
            if present < state.get("min_workers", expected):
                return f"the job waits, with {roll}: ROLLCALL_MIN_WORKERS lets it go on with fewer"
            limit = f"{duration(state['replace_timeout'])} (ROLLCALL_REPLACE_TIMEOUT)"
            return f"the job waits for {limit}, then goes on with {roll} if it fits there"
    return ""


def _attempts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far the run is. A head of an earlier version says less of its attempts."""
    progress = Progress.of(state.get("progress") or {})
    if attempt := state.get("attempt"):
        failures = state["failures"]
        told = f"{counted(failures, 'failure')} so far" if failures else ""
        saved = progress.checkpoint if progress else None
        makes_steps = state.get("phase", "training") == "training" and not state["is_starting"]
        checkpoint = lost_head.kept(
            replace(progress, in_memory=None) if progress and makes_steps else progress
        )
        is_logged = progress is not None and progress.is_logged
        if not state.get("tells_steps", True) or (is_logged and saved is None):
            checkpoint = ""  # the job alone knows
        lost = state.get("steps_lost")
        kept = steps_kept(progress.step, lost) if progress and lost else ""
        parts = (_without_step(state), told, kept, checkpoint)
        if said := ", ".join(filter(None, parts)):
            yield f"attempt {attempt}: {said}"
    if (failure := state.get("last_failure")) and not is_over(state):
        yield from run_end.why(failure, {**run_end.LABELS, "cause": "last failure"})
    if progress:
        yield console.sentence(progress)


def _phase(state: Mapping[str, Any]) -> str:
    """Return the head's phase; of a job that tells no steps, nobody knows that it trains."""
    trains = state["phase"] == "training"
    phase = "running" if trains and not state.get("tells_steps", True) else str(state["phase"])
    if phase == STORAGE and (why := state.get("sentence")):
        phase = f"{phase}: {why}"
    return f"{phase}, a stop was asked" if state.get("is_stopping") else phase


def _without_step(state: Mapping[str, Any]) -> str:
    """Return what an attempt does that tells no step now; "" if it tells them, or has ended."""
    if state["is_starting"]:
        return "starting, no step yet"
    seconds = state.get("attempt_seconds")
    if seconds is None or state.get("tells_steps", True):
        return ""
    return f"running for {duration(seconds)}; it tells no steps"


def _warnings(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the page lists as needing attention, besides absent nodes."""
    for node, why in state.get("refused", {}).items():
        yield f"{node} was refused: {why}"
    if no_reward := state.get("no_reward"):
        yield no_reward
    yield from state.get("differences", ())
    said: dict[str, dict[str, None]] = {}
    """Warning → the nodes that have it, in their order."""
    for one in state.get("health", ()):
        said.setdefault(f"{one['part']}: {one['evidence']}", {})[one["node"]] = None
    for node in filter(None, [state.get("head_node"), *state["nodes"]]):
        for check in node["warnings"]:
            finding = node["findings"].get(check) or f"{check}: rollcall doctor"
            said.setdefault(finding, {})[node["node"]] = None
    yield from (f"{_several(list(nodes))}: {finding}" for finding, nodes in said.items())


def _several(nodes: Sequence[str]) -> str:
    """Return the names of nodes; of many, how many there are and the first of them."""
    shown = ", ".join(nodes[:MOST_NAMED])
    return f"{len(nodes)} nodes ({shown}, …)" if len(nodes) > MOST_NAMED else shown


def job_sentences(row: Mapping[str, Any]) -> Iterator[str]:
    code = "" if row["exit_code"] is None else f", exit code {row['exit_code']}"
    why = f": {row['sentence']}" if row["sentence"] else ""
    yield f"{row['id']} ({row['state']}{code}){why}"
    if row["state"] == JobState.FAILED:
        yield from run_end.why(row)
    yield from _attempts(row)


def is_over(row: Mapping[str, Any]) -> bool:
    """Whether the head's state, or a job's row, is the last one."""
    return row.get("outcome") is not None or row.get("ended") is not None
