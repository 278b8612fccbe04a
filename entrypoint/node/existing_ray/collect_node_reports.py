"""Has a node of an existing Ray say what it is, through a short Ray job that runs on each node."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.launch.programs import Program
from entrypoint.cluster import request_format
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.role import expected_workers
from entrypoint.config.settings import Settings
from entrypoint.job.existing_ray_jobs import ExistingRayJobs
from entrypoint.job.ray_jobs import JobRefusedError
from entrypoint.net import wait
from entrypoint.node.ray_start_errors import last_words
from entrypoint.node.ray_state import Alive
from entrypoint.preflight.run import examined_whole
from entrypoint.processes.inbox import Inbox, UnfitRayError
from entrypoint.processes.programs import program

NODE_SECONDS = 180.0
"""Limit for all checks of one node."""
JOB_SECONDS = NODE_SECONDS + 60.0
ANSWER = '{"on_node": '
CANNOT = "Ray's nodes cannot be examined"
UNFINISHED = "its checks have not finished"
NO_SUCH_IMAGE = re.compile(
    r"No module named '?(trainer|entrypoint)|: not found|No such file or directory|can't cd to"
)
"""What a shell or Python says if the image there is not this one."""


def collect_node_reports(
    jobs: ExistingRayJobs, nodes: Sequence[Alive], settings: Settings, inbox: Inbox
) -> dict[str, NodeInfo]:
    """Return id → what each node says of itself; one that cannot answer is unfit, with the reason.

    A job that failed before it had told of every node counts as not run. Raises UnfitRayError if
    Ray's head cannot run Rollcall, NotYetError if Ray did not run the job, and
    InterruptedWaitError.
    """
    on_each = program(Program.NODE_REPORT, json.dumps(for_nodes(settings)))
    named = ",".join(node.id for node in nodes)
    argv = (
        *program(Program.RUN_ON_NODES, "--nodes", named),
        *("--within", f"{NODE_SECONDS:g}", "--", *on_each),
    )
    try:
        info, output = jobs.output_of(
            f"rollcall-nodes-{uuid.uuid4().hex[:12]}", argv, JOB_SECONDS, inbox.stop
        )
    except (JobRefusedError, wait.GaveUpError) as error:
        raise wait.NotYetError(f"{CANNOT}: {error}") from None
    rows = dict(_rows(output))
    if not rows:
        said = last_words(output if output.strip() else info.message)
        if NO_SUCH_IMAGE.search(output):
            raise UnfitRayError(
                f"Ray's head node cannot run Rollcall ({said}): its image must be the one that "
                "runs here"
            )
        raise wait.NotYetError(f"{CANNOT}: {said}")
    silent = [name_of(node) for node in nodes if node.id not in rows]
    if silent and info.status != "SUCCEEDED":
        said = last_words(info.message)
        raise wait.NotYetError(
            f"{CANNOT}: the job ended without a line of {', '.join(silent)} ({said})"
        )
    whole = examined_whole(settings)
    return {node.id: _info(node, rows.get(node.id, {}), whole) for node in nodes}


def for_nodes(settings: Settings) -> dict[str, str]:
    """The supervisor's variables by which a node examines itself."""
    return {
        "ROLLCALL_RAY_ADDRESS": settings.ray_address or "",
        "ROLLCALL_RUN_DIR": str(settings.run_dir),
        "ROLLCALL_RECIPE": settings.recipe,
        "ROLLCALL_PREFLIGHT": settings.preflight.value,
        "ROLLCALL_PREFLIGHT_SKIP": ",".join(sorted(settings.preflight_skip)),
        "EXPECTED_WORKERS": str(expected_workers(settings)),
    }


def name_of(node: Alive) -> str:
    """The node's name in Ray, by default its address, with no character that a log lacks."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", node.name or node.address).strip("._-")[:64]


def _rows(output: str) -> list[tuple[str, dict[str, Any]]]:
    """The answers of the nodes, between other lines.

    Raises NotYetError if one is cut off, as by the end of a job that was killed while it wrote.
    """
    try:
        found = [json.loads(line) for line in output.splitlines() if line.startswith(ANSWER)]
    except ValueError as error:
        raise wait.NotYetError(f"{CANNOT}: the answer of a node is cut off ({error})") from None
    return [(row["on_node"], row) for row in found]


def _why_not(row: Mapping[str, Any]) -> str:
    """Why a node has not said what it is, from its row; an empty row stands for none."""
    why = row.get("error") or last_words(row.get("output", ""))
    if not row:
        return f"{UNFINISHED}: the output of the job that asked it has no line of this node"
    if "exit_code" in row or NO_SUCH_IMAGE.search(why):
        return f"it cannot run Rollcall, whose image each node of Ray must have ({why})"
    return f"{UNFINISHED}: {why}"


def _info(node: Alive, row: Mapping[str, Any], whole: bool) -> NodeInfo:
    """The node's answer, with what Ray says of its resources. `whole`: it has run every check."""
    unknown = NodeInfo(node=name_of(node), address=node.address, versions={})
    if row.get("exit_code") != 0:
        return replace(unknown, unfit=[" ".join(_why_not(row).split())])
    printed = row["output"].splitlines()
    if not printed:
        return replace(unknown, unfit=[f"{UNFINISHED}: the program there printed no line"])
    try:
        said = json.loads(printed[-1])
        body = {**said, "node": unknown.node, "address": node.address}
        info = request_format.node_info(json.dumps(body).encode())
    except (ValueError, TypeError) as error:
        return replace(unknown, unfit=[f"its answer cannot be read ({error})"])
    offered = {
        "cpus": node.resources.get("CPU", 0.0),
        "gpus": node.resources.get("GPU", 0.0),
    }
    # Compared with the clock of Ray's head, which had the answer at once.
    ahead = (info.clock or row["at"]) - row["at"]
    return replace(
        info,
        inventory={**info.inventory, **offered},
        resources=node.custom,
        clock=time.time() + ahead,
        examined=uuid.uuid4().hex[:12] if whole else "",
    )
