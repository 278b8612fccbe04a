"""The node's warm process, which has the imports of a rank and forks the processes of the run.

It outlives the node's Ray, so that the next Ray's processes import nothing.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from contract.files import private_dir
from contract.launch import warm
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.processes import process
from entrypoint.processes.programs import ROOT, program

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Between two looks for whether it is wanted."""
MOST_STARTS = 5
SIGNALS = 128
"""An exit code above it is that of a process that a signal has ended."""
NONE = "no warm process, so each process of the run imports for itself: %s"


class WarmProcess:
    """Runs from its first need to the end of the `with` block. Without it, each process imports.

    One that was killed, for example by the kernel if memory runs out, is started again.
    """

    def __init__(self, settings: Settings, env: Mapping[str, str], *, at_once: bool) -> None:
        """`env`: the node's own variables.

        `at_once`: start it with the block, rather than when a process asks for it.
        """
        self._settings, self._env, self._at_once = settings, env, at_once
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="warm-process", daemon=True)

    def __enter__(self) -> WarmProcess:
        try:
            _write_python(home(self._settings))
            if self._at_once:
                warm.wanted(home(self._settings)).touch()
        except OSError as error:
            log.warning(NONE, error)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        private_dir.remove(home(self._settings))

    def _keep(self) -> None:
        """Start it when it is wanted, and end it. It ends with the thread that has started it."""
        wanted = warm.wanted(home(self._settings))
        try:
            for _ in range(MOST_STARTS):
                while not wanted.exists():
                    if self._over.wait(LOOK_SECONDS):
                        return
                wanted.unlink()
                if not self._lives_to_the_end(self._start()):
                    return
            log.warning(NONE, f"it was killed {MOST_STARTS} times")
        except (OSError, process.StartError) as error:
            log.warning(NONE, error)

    def _start(self) -> process.Process:
        name, run = self._settings.node_name, RunFiles(self._settings.run_dir)
        process.raise_open_files_limit()
        # Ray finds the place of titles from the first variable, which stays as it is in every fork.
        first = {"SPT_NOENV": self._env.get("SPT_NOENV", "1")}
        last = process.marks(mark(self._settings)) | {warm.PADDING: "." * warm.PADDING_BYTES}
        return process.Process(
            "warm",
            program(Program.WARM, str(home(self._settings)), "." * warm.TITLE_BYTES),
            env=first | dict(self._env) | last,
            log_to=run.logs / f"warm-{name}.log",
        )

    def _lives_to_the_end(self, running: process.Process) -> bool:
        """Return True once it is killed; False if it ends by itself, or the block ends."""
        while not self._over.wait(LOOK_SECONDS):
            if (code := running.exit_code) is not None:
                if code <= SIGNALS:
                    log.warning(NONE, running.tail(1))
                return code > SIGNALS
        running.stop(grace=1.0)
        return False


def mark(settings: Settings) -> str:
    """The mark of the process. It differs from that of the node's Ray, which it outlives."""
    return f"{settings.node_mark}/warm"


def home(settings: Settings) -> Path:
    return private_dir.of_node(settings.node_mark) / "warm"


def python(settings: Settings) -> Path | None:
    """Return the Python that has its processes forked on this node; None if none are."""
    shim = warm.python(home(settings))
    return shim if os.access(shim, os.X_OK) else None


def _write_python(directory: Path) -> None:
    private_dir.make(directory)
    stand_in = ROOT.joinpath(*Program.WARM_SHIM.split(".")).with_suffix(".py")
    line = [sys.executable, "-IS", str(stand_in), str(directory), sys.executable]
    shim = warm.python(directory)
    shim.write_text(f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n')
    shim.chmod(0o700)
