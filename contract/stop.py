"""SIGTERM → save at the next step boundary."""

from __future__ import annotations

import signal
from types import FrameType

from contract.run_dir import ExitCode


class Stopped(Exception):  # noqa: N818 - it names a state, as the exit code does
    """The run was asked to stop, and everything that it has learned is on disk."""


class StopRequest:
    """Remembers that SIGTERM came; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        """Listen from now on. After `ray.init`, which installs a handler of its own."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise SystemExit(ExitCode.STOPPED)
        self.requested = True
