"""A stop request: SIGTERM makes the trainer save at the end of its step."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from contract.exit_codes import ExitCode


class Stopped(Exception):  # noqa: N818 - it names a state, as the exit code does
    """The run was asked to stop, and its newest step is on disk."""


class StopRequest:
    """Remembers the first SIGTERM; a second one ends the process immediately."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        """Handle SIGTERM. Call it after `ray.init`, which installs its own handler.

        Does nothing in a thread: Python allows handlers in the main thread alone.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise SystemExit(ExitCode.STOPPED)
        self.requested = True
