"""Turns a fork of the server into the requested process."""

from __future__ import annotations

import os
import resource
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from entrypoint.processes.fork_server import proc_view
from entrypoint.processes.fork_server.protocol import Request

LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_AS)


@dataclass(frozen=True, slots=True)
class ForkTask:
    """What a fork of the server becomes."""

    request: Request
    shim: int
    """PID of the shim, the process that Ray knows and signals."""
    files: tuple[int, ...]
    """Descriptors of its standard input, output and error."""


def become(task: ForkTask) -> None:
    """Run the requested program. Returns at its end; the program may raise SystemExit."""
    request = task.request
    os.setsid()
    _be_treated_as(task.shim)
    for number, file in enumerate(task.files):
        os.dup2(file, number)
        os.close(file)
    os.umask(request.umask)
    os.chdir(request.directory)
    _set_variables(request.environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    _draw_other_numbers()
    _be_known_as([sys.executable, *request.argv])
    _run(request.argv)


def _be_treated_as(shim: int) -> None:
    """Take the shim's limits, priority and OOM score, as far as allowed."""
    for limit in LIMITS:
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, resource.prlimit(shim, limit))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, shim))
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(shim))
    with suppress(OSError):
        score = Path(f"/proc/{shim}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(score)


def _set_variables(environ: Mapping[str, str]) -> None:
    """Each that stays the same keeps its place in memory: libraries hold on to what they read."""
    new = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    proc_view.show_variables(new)
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(new)


def _draw_other_numbers() -> None:
    """Than the other forks; Python's own generator sees to it itself."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def _be_known_as(argv: Sequence[str]) -> None:
    try:
        # Ray finds the place of its titles as it sets the first, and for each it clears in it as
        # much as the last was long: this one fills it.
        import_module("ray._raylet").setproctitle(proc_view.padding(2**16))
        proc_view.show_arguments(argv)
    except (ImportError, OSError):
        return


def _run(argv: Sequence[str]) -> None:
    if list(argv[:2]) == ["-P", "-m"]:
        sys.argv = list(argv[2:])
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        sys.path.insert(0, str(Path(argv[0]).parent))
        runpy.run_path(argv[0], run_name="__main__")
