"""What Ray says of a start that failed, in its output and in its dashboard's log."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from entrypoint.job.failures.evidence_log import plain

ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
"""Start of a traceback's line that names the error."""
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\s+[A-Z]+ \S+:\d+ -- ")
"""Start of a line that Ray's Python programs log."""
LONGEST_WORDS = 600
DASHBOARD = "dashboard/dashboard.py"
LOG_DIR = "--log-dir="
FAILED = "failed with the following error:"


def last_words(text: str) -> str:
    """Return a program's last output as one line: of a traceback only the error."""
    lines = [line for line in plain(text).splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    first, *rest = lines[errors[-1] if errors else -1 :] or [""]
    logged = next((number for number, line in enumerate(rest) if LOG_LINE.match(line)), len(rest))
    words = " ".join(" ".join([first, *rest[:logged]]).split())
    return words[:LONGEST_WORDS] or "it said nothing"


def hiding_files(directory: Path) -> str:
    """Return an addition to a sentence on files there that hide Python's own modules; else "".

    Ray's programs are started there, and some of them search the working directory first.
    """
    names = sys.stdlib_module_names
    files = [one.name for one in directory.glob("*.py") if one.stem in names]
    folders = [one.parent.name for one in directory.glob("*/__init__.py")]
    found = sorted([*files, *(name for name in folders if name in names)])
    if not found:
        return ""
    them = ", ".join(found)
    return f"; {them} in {directory} hides a module of Python from Ray: rename it"


def dashboard_fault(processes: Iterable[psutil.Process]) -> str | None:
    """Return the error that ended the dashboard's start; None if there is none.

    After that error the dashboard's process may hang instead of ending, and `ray start` waits on.
    """
    for process in processes:
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if any(word.endswith(DASHBOARD) for word in line):
            named = [word.removeprefix(LOG_DIR) for word in line if word.startswith(LOG_DIR)]
            return _logged_fault(Path(named[-1]) / "dashboard.log") if named else None
    return None


def _logged_fault(log: Path) -> str | None:
    try:
        _, failed, error = log.read_text(errors="replace").rpartition(FAILED)
    except OSError:  # not there yet
        return None
    return last_words(error) if failed else None
