"""The last line of a plan: what the command would do, or that it would not start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract.durations import counted
from entrypoint.commands.plan_layout import above_memory, most_memory
from entrypoint.config.role import Worker

WAITS = "waits for rollcall submit"
"""Stands for the job of a head that waits for jobs."""
NO_JOB = (
    "this head would not start: no job is given, and it does not wait for jobs. Give a command or "
    "flags such as --pretrain MODEL after `plan`, or --wait-for-jobs"
)
MEMORY = "memory"
"""Stands for the variable of a fault: the machine has too little."""
NOT_WRITTEN = "an earlier stage has still to write what it reads"


def sentence(row: Mapping[str, Any]) -> str:
    """Return the verdict of a plan's row."""
    warnings = len(row["warnings"])
    is_are = "is" if warnings == 1 else "are"
    above = f"; {counted(warnings, 'warning')} {is_are} above" if warnings else ""
    if [fault["variable"] for fault in row["faults"]] == [MEMORY]:
        return f"this command does not fit: it {above_memory(row['layout'])}{above}"
    if row["faults"]:
        return f"this command would not start, for {counted(len(row['faults']), 'fault')}{above}"
    if row["unended_import"]:
        return f"this command may not start: the import of its file has not ended{above}"
    return f"{_would(row)}{above}"


def _unseen(row: Mapping[str, Any]) -> str:
    """Return what must be true for the run to start, and was not seen; "" if all was."""
    unseen = [f"the directory {row['run_dir']} is there"] if row["lacks_run_dir"] else []
    if row["needs_hub"]:
        unseen.append("the hub, which was not asked, has what it names")
    return f", if {' and if '.join(unseen)}" if unseen else ""


def _would(row: Mapping[str, Any]) -> str:
    if row["role"] is None:
        return "this node would look up its role when it starts"
    if row["role"] == Worker.name:
        return (
            f"this node would join the head at {row['head_address'] or 'an address still unknown'}"
        )
    workers, unseen = counted(row["expected_workers"] or 0, "worker"), _unseen(row)
    if row["job"] in (None, ""):
        return NO_JOB
    if row["job"] == WAITS:
        return f"this head would wait for {workers} and for jobs (rollcall submit){unseen}"
    nodes = counted((row["expected_workers"] or 0) + 1, "node")
    count, why = (row["steps"] or {"count": None, "why": NOT_WRITTEN}).values()
    if above := above_memory(row["layout"]):
        steps = "" if count is None else f"{counted(count, 'step')} on {nodes}, "
        return f"this command may not fit: {steps}by the estimate it {above}{unseen}"
    memory = most_memory(row["layout"])
    needs = f", with {memory}" if memory else ""
    if count is not None:
        return f"this command would run: {counted(count, 'step')} on {nodes}{needs}{unseen}"
    unknown = f"; its steps are not known: {why}" if why else ""
    return f"this command would run on {nodes}{needs}{unseen}{unknown}"
