"""Processes that a job has left on a node: forked children and daemons that outlive it.

All that a job starts inherits its variables: `ROLLCALL_ATTEMPT` from the driver, `RAY_JOB_ID` from
Ray's workers. Ray ends its own workers with the job. What lives on has lost its parent, and holds
memory, ports and GPUs of the next job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil

from contract.files.child_variables import ATTEMPT
from contract.launch import warm
from entrypoint.config.settings import Settings
from entrypoint.processes import process

RAY_JOB = "RAY_JOB_ID"
NO_JOB = "ffffffff"
"""Of a worker that Ray has started for no job yet. It keeps this value when a job takes it."""
DAEMON = "raylet"
ENDING_SECONDS = 1.0
"""For the last processes of a job to end by themselves."""
GRACE_SECONDS = 2.0
LONGEST_COMMAND = 80
MOST_NAMED = 3
_WORKING = re.compile(r"ray::(?!IDLE|JobSupervisor)")
"""The title of a Ray worker that has a task or an actor of a job."""


def end(settings: Settings, born_before: float = math.inf) -> str:
    """End what a job that is over has left on this node; return what it was, or "".

    Ray's own processes stay, and so do Ray's workers, which Ray ends. `born_before`: what has begun
    later is of the next job; seconds since 1970.
    """
    return _ended(found for found in _strays(settings) if _born(found) < born_before)


def ray_works(settings: Settings, born_before: float) -> bool:
    """Return whether a Ray worker that was born before then still has a task or an actor."""
    workers = (found for found in _marked(settings) if _born(found) < born_before)
    return any(_WORKING.match(" ".join(_command(found))) for found in workers)


def end_of_earlier_jobs(settings: Settings) -> str:
    """End what jobs have left that came before the one that runs here; return it, or ""."""
    running = [_ray_job(found) for found in _marked(settings) if _is_rays(found)]
    newest = max(running, default=0)
    return _ended(found for found in _strays(settings) if 0 < _ray_job(found) < newest)


def _ended(found: Iterable[psutil.Process]) -> str:
    _, left = psutil.wait_procs(list(found), timeout=ENDING_SECONDS)
    names = [name for one in left if (name := _name(one))]
    if not process.end(left, grace=GRACE_SECONDS) or not names:
        return ""
    noun = "process" if len(names) == 1 else "processes"
    more = ", …" if len(names) > MOST_NAMED else ""
    return f"{len(names)} {noun} ({', '.join(names[:MOST_NAMED])}{more})"


def _strays(settings: Settings) -> Iterator[psutil.Process]:
    return (found for found in _marked(settings) if not _is_rays(found))


def _marked(settings: Settings) -> Iterator[psutil.Process]:
    """Yield this node's processes that a job has started."""
    for found in process.find_ours_or_orphaned(settings.node_mark):
        with suppress(psutil.Error, OSError):
            if found.environ().keys() & {ATTEMPT, RAY_JOB}:
                yield found


def _is_rays(found: psutil.Process) -> bool:
    """Return whether it is Ray's daemon, or has it or the node's warm process as an ancestor."""
    try:
        line = [found, *found.parents()]
    except psutil.Error:
        return True
    for one in line:
        with suppress(psutil.Error, OSError):
            if one.name() in (DAEMON, warm.NAME):
                return True
    return False


def _ray_job(found: psutil.Process) -> int:
    """Return the number of the job for Ray, which counts up; 0 if the process has none."""
    with suppress(psutil.Error, OSError, ValueError):
        job = found.environ().get(RAY_JOB, "")
        return 0 if job == NO_JOB else int.from_bytes(bytes.fromhex(job), "little")
    return 0


def _name(found: psutil.Process) -> str:
    """Return the process's number and command, which may have secrets; "" if it has ended."""
    words = " ".join(" ".join(_command(found)).split())[:LONGEST_COMMAND]
    command = "".join(one if one.isprintable() else "?" for one in words)
    try:
        return f"{found.pid}: {command}" if found.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


def _command(found: psutil.Process) -> list[str]:
    try:
        return list(found.cmdline())
    except psutil.Error:
        return []


def _born(found: psutil.Process) -> float:
    try:
        return float(found.create_time())
    except psutil.Error:
        return math.inf
