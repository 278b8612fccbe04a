"""Exit codes of the launcher, the trainer and their jobs; docs/reference.md has what each means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of this product's processes; a platform's restart rule can use them."""

    FINISHED = 0
    USAGE = 64
    UNREACHABLE = 69
    JOB_FAILED = 70
    RUN_DIR = 73
    RETRY = 75
    UNFIT = 76
    NOT_ALLOWED = 77
    STOPPED = 143
