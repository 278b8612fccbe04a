"""The files that Ray needs to start workers on this node.

They lie below /tmp, where cleaners delete files. Ray's daemons hold them open and keep running
without a warning, but each new worker ends at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

import psutil

from entrypoint.node.raylet import DAEMON

OPTIONS = ("--raylet_socket_name", "--store_socket_name", "--log_dir")
"""The daemon's options that name its workers' sockets and log directory."""
PYTHON = "--python_worker_command"


def needed(processes: Iterable[psutil.Process]) -> list[Path]:
    """Return the files that the daemon's workers open, and their program; [] without a daemon."""
    for process in processes:
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if line and Path(line[0]).name == DAEMON:
            return _named_by(dict(word.split("=", 1) for word in line if "=" in word))
    return []


def _named_by(options: dict[str, str]) -> list[Path]:
    program = shlex.split(options.get(PYTHON, ""))[:1]
    names = [options[name] for name in OPTIONS if name in options]
    return [Path(name) for name in (*names, *program) if Path(name).is_absolute()]


def missing(paths: Iterable[Path]) -> Path | None:
    """Return the first path that is surely gone. A path that cannot be read now may be there."""
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return path
        except OSError:
            continue
    return None
