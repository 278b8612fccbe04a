"""Files without which Ray on this node starts no worker any more.

They lie below /tmp, where cleaners are at work. Ray's daemons hold them open and go on without a
word, and each new worker ends at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

import psutil

DAEMON = "raylet"
OPTIONS = ("--raylet_socket_name", "--store_socket_name", "--log_dir")
"""Of the daemon: what each worker connects to, and where it writes."""
PYTHON = "--python_worker_command"


def needed(processes: Iterable[psutil.Process]) -> list[Path]:
    """What the daemon among these has its workers open, and the program that they are; nothing
    where there is none."""
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
    """The first that is surely gone: one that cannot be looked at now may be there."""
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return path
        except OSError:
            continue
    return None
