"""Where every process of a node stands, before a hung job is ended.

py-spy reads the stacks from outside, so that a process which answers nothing is read too. Where it
is missing or not allowed to (it needs CAP_SYS_PTRACE in most containers), the kernel's word on each
process is kept instead.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from contract.journal import timestamp
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.processes import process, services

log = logging.getLogger(__name__)

EACH_SECONDS = 5.0
ALL_SECONDS = 20.0
AT_ONCE = 4
OF_RAY = re.compile(
    r"ray::(IDLE|DashboardAgent|RuntimeEnvAgent|JobSupervisor)|ray-dashboard-"
    r"|-packages/ray/(?!_private/workers/default_worker\.py)"
    r"|bin/ray |-m ray\.|multiprocessing\.resource_tracker| -IS "
)
"""What is in the titles of Ray's own helpers, and of shims: they do not hang a job. A worker that
Ray could give no title may well do: it is asked for its stack."""


def path_of(run: RunFiles, attempt: int, worker: str | None = None) -> Path:
    """The head's file, or that of a worker."""
    return run.logs / f"stacks-attempt-{attempt}{f'-{worker}' if worker else ''}.txt"


def collect(settings: Settings, path: Path) -> int:
    """Write the stacks of this node's processes to `path`, in no more than ALL_SECONDS.

    Returns the number of processes. What cannot be written is said in the log, and nothing else:
    stacks help people, the run does not need them.
    """
    found = sorted(_of_the_job(settings), key=lambda one: one.pid)
    pool = ThreadPoolExecutor(AT_ONCE)
    pending = [pool.submit(_stack, one) for one in found]
    pool.shutdown(wait=False)
    deadline = time.monotonic() + ALL_SECONDS
    texts = []
    for one, answer in zip(found, pending, strict=True):
        try:
            texts.append(
                f"=== {_title(one)}\n{answer.result(max(0.0, deadline - time.monotonic()))}\n"
            )
        except TimeoutError:
            answer.cancel()
            texts.append(f"=== {_title(one)}\nnot read in time\n")
    try:
        path.write_text(f"{timestamp()} {settings.node_name}\n\n" + "\n".join(texts))
    except OSError as error:
        log.warning("no stacks in %s: %s", path, error.strerror)
    return len(found)


def _of_the_job(settings: Settings) -> Iterable[psutil.Process]:
    """The Python processes that train, generate or score on this node."""
    marks = (settings.node_mark, services.mark(settings))
    for one in (one for mark in marks for one in process.find_ours_or_orphaned(mark)):
        title = _title(one)
        if "python" in _program(one) and not OF_RAY.search(title):
            yield one


def _stack(one: psutil.Process) -> str:
    try:
        # A stopped process cannot be paused, and need not be.
        paused = one.status() == psutil.STATUS_STOPPED
        argv = [_py_spy(), "dump", "--pid", str(one.pid), *(["--nonblocking"] if paused else [])]
        exit_code, text = process.output(argv, timeout=EACH_SECONDS)
    except psutil.NoSuchProcess:
        return "gone"
    except process.StartError as error:
        return f"{error}\n{_by_the_kernel(one)}"
    return text if exit_code == 0 else f"{text}\n{_by_the_kernel(one)}"


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def _by_the_kernel(one: psutil.Process) -> str:
    """State, threads, and in which call of the kernel the main thread waits."""
    try:
        waits = Path(f"/proc/{one.pid}/wchan").read_text() or "nothing"
        return f"{one.status()}, {one.num_threads()} threads, in the kernel it waits in {waits}"
    except (psutil.Error, OSError):
        return "gone"


def _title(one: psutil.Process) -> str:
    try:
        return " ".join([str(one.pid), *" ".join(one.cmdline()).split()])[:200]
    except psutil.Error:
        return f"{one.pid}"


def _program(one: psutil.Process) -> str:
    try:
        return Path(one.exe()).name
    except (psutil.Error, OSError):
        return ""
