"""Dumps the stacks of a node's processes before a hung job is ended.

py-spy reads the stacks from outside, and so also those of a process that does not respond. If
py-spy is missing or not allowed to (most containers need CAP_SYS_PTRACE), the dump has the kernel's
state of each process instead.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from contract.journal import timestamp
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.processes import process, services
from entrypoint.processes.programs import beside_interpreter

log = logging.getLogger(__name__)

EACH_SECONDS = 5.0
ALL_SECONDS = 20.0
WORKERS_SECONDS = 10.0
AT_ONCE = 4
OF_RAY = re.compile(
    r"ray::(IDLE|DashboardAgent|RuntimeEnvAgent|JobSupervisor)|ray-dashboard-"
    r"|-packages/ray/(?!_private/workers/default_worker\.py)"
    r"|bin/ray |-m ray\.|-m trainer\.cluster\.ray_(start|dashboard) "
    r"|multiprocessing\.resource_tracker| -IS "
)
"""Titles of Ray's own helpers and of shims, which do not hang a job. A worker to which Ray could
give no title may hang the job, and so its stack is read."""


def path_of(run: RunFiles, attempt: int, worker: str | None = None) -> Path:
    """The head's file, or that of a worker."""
    return run.logs / f"stacks-attempt-{attempt}{f'-{worker}' if worker else ''}.txt"


def collect(settings: Settings, path: Path) -> int:
    """Write the stacks of this node's processes to `path`; return the number of processes.

    It takes at most ALL_SECONDS. A file that cannot be written is a warning only: stacks help
    people, the run does not need them.
    """
    processes = sorted(of_the_job(settings), key=lambda running: running.pid)
    pool = ThreadPoolExecutor(AT_ONCE)
    pending = [pool.submit(_stack, running) for running in processes]
    pool.shutdown(wait=False)
    deadline = time.monotonic() + ALL_SECONDS
    texts = []
    for running, stack in zip(processes, pending, strict=True):
        try:
            text = stack.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            stack.cancel()
            text = "not read in time"
        texts.append(f"=== {title(running)}\n{text}\n")
    try:
        path.write_text(f"{timestamp()} {settings.node_name}\n\n" + "\n".join(texts))
    except OSError as error:
        log.warning("no stacks in %s: %s", path, error.strerror)
    return len(processes)


def await_workers(run: RunFiles, attempt: int, workers: Iterable[str]) -> None:
    """Wait until the workers have written their stacks: the end of the job would take them away.

    It takes at most WORKERS_SECONDS; a worker may hang itself.
    """
    missing = {path_of(run, attempt, worker) for worker in workers}
    deadline = time.monotonic() + WORKERS_SECONDS
    while missing and time.monotonic() < deadline:
        missing = {path for path in missing if not path.exists()}
        time.sleep(0.1)


def of_the_job(settings: Settings) -> Iterable[psutil.Process]:
    """The Python processes that train, generate or score on this node."""
    for mark in (settings.node_mark, services.mark(settings)):
        for running in process.find_ours_or_orphaned(mark):
            if "python" in _program(running) and not OF_RAY.search(title(running)):
                yield running


def _stack(running: psutil.Process) -> str:
    argv = [beside_interpreter("py-spy"), "dump", "--pid", str(running.pid)]
    try:
        if running.status() == psutil.STATUS_STOPPED:  # it cannot be paused, and need not be
            argv.append("--nonblocking")
        exit_code, text = process.output(argv, timeout=EACH_SECONDS)
    except psutil.NoSuchProcess:
        return "gone"
    except process.StartError as error:
        return f"{error}\n{_by_the_kernel(running)}"
    return text if exit_code == 0 else f"{text}\n{_by_the_kernel(running)}"


def _by_the_kernel(running: psutil.Process) -> str:
    """State, number of threads, and the kernel's function in which the main thread waits."""
    try:
        waits = Path(f"/proc/{running.pid}/wchan").read_text() or "nothing"
        state, threads = running.status(), running.num_threads()
        return f"{state}, {threads} threads, in the kernel it waits in {waits}"
    except (psutil.Error, OSError):
        return "gone"


def title(running: psutil.Process) -> str:
    """The PID and the command line, of at most 200 characters."""
    try:
        return " ".join([str(running.pid), *" ".join(running.cmdline()).split()])[:200]
    except psutil.Error:
        return f"{running.pid}"


def _program(running: psutil.Process) -> str:
    try:
        return Path(running.exe()).name
    except (psutil.Error, OSError):
        return ""
