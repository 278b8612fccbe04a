"""DeepSpeed's notice that it has found no GPU, on machines that have none."""

from __future__ import annotations

import logging
from pathlib import Path

NOTICE = "Setting accelerator to CPU"
DEVICES = ("nvidia[0-9]*", "kfd", "dri/renderD*")
"""Device files of GPUs."""


def leave_out(devices: Path = Path("/dev")) -> None:
    """Leave the notice out of this process's log, unless there is a GPU that DeepSpeed misses."""
    if not any(next(devices.glob(pattern), None) for pattern in DEVICES):
        logging.getLogger("DeepSpeed").addFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    return NOTICE not in record.getMessage()
