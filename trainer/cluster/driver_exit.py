"""The end of a process, also if Ray or W&B does not let go of it."""

from __future__ import annotations

import os
from threading import Timer

LEAVE_SECONDS = 5.0
"""Timeout for Ray's exit, in seconds. Ray closes its connection to every process, which
takes minutes if the network to a process is broken. Its daemons end the driver's workers in any
case."""


def exit_within(seconds: float, code: int) -> None:
    """End this process with `code` if its exit handlers take longer than `seconds`."""
    timer = Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
