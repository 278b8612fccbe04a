"""A stop request: SIGTERM makes the trainer save at the end of its step."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

import psutil

from contract.exit_codes import ExitCode

DAEMONS = frozenset({"gcs_server", "raylet"})
"""Of a local Ray, which are children of this process."""
DAEMONS_END_SECONDS = 45.0
"""They take 10 s for it; a minute later Ray ends this process without a word of ours."""
LOST_WITH_RAY = (
    "Stopped without saving: SIGTERM has ended Ray's processes, too. The same call or command "
    "resumes the run from its newest checkpoint. To save first, send SIGTERM to process {pid} "
    "alone, not to its group"
)


class Stopped(Exception):  # noqa: N818 - it names a state, as the exit code does
    """The run was asked to stop, and its newest step is on disk."""


class StopRequest:
    """Remembers the first SIGTERM; a second one ends the process immediately."""

    def __init__(self) -> None:
        self.requested = False
        self.is_over = False
        """Ray may end from now on."""
        self._daemons: list[psutil.Process] = []

    def install(self) -> None:
        """Handle SIGTERM. Call it after `ray.init`, which installs its own handler.

        Does nothing in a thread: Python allows handlers in the main thread alone.
        """
        if threading.current_thread() is threading.main_thread():
            children = psutil.Process().children()
            self._daemons = [one for one in children if one.name() in DAEMONS]
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self.is_over = True
            raise SystemExit(ExitCode.STOPPED)
        self.requested = True
        if self._daemons:
            threading.Thread(target=self._watch_daemons, daemon=True).start()

    def _watch_daemons(self) -> None:
        """End this process if the signal has ended its Ray, too.

        `timeout` and others send SIGTERM to a whole process group.
        """
        psutil.wait_procs(self._daemons, DAEMONS_END_SECONDS, self._end_without_ray)

    def _end_without_ray(self, daemon: psutil.Process) -> None:
        if not self.is_over:
            print(LOST_WITH_RAY.format(pid=os.getpid()), file=sys.stderr, flush=True)
            os._exit(ExitCode.STOPPED)
