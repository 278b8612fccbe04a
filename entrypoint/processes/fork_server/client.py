"""The node's side of its fork server, which ROLLCALL_FORK_SERVER turns on.

This module writes the server's files, starts and ends the server, and logs its state.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from contract.files import private_dir
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.processes import process
from entrypoint.processes.fork_server import proc_view
from entrypoint.processes.programs import program

log = logging.getLogger(__name__)

PRELOADED: str = Program.PRELOAD
"""The module with what the server imports before its first fork."""
PADDING_BYTES, TITLE_BYTES = 2**14, 2**12
"""Bytes for the variables and for the command line that the system shows of a fork."""
START_SECONDS = 60.0
PAUSES_SECONDS = (1.0, 4.0, 16.0, 64.0)
"""Before it is started again; then it is left."""
IMPORT_SECONDS = 4.0
"""That a process without a fork server spends on its imports."""
LONGEST_FIRST_LINE = 127
"""That every kernel reads, in bytes."""
STATE_REQUEST = bytes(4)
BESIDE = Path(__file__).parent


class ForkServer:
    """The node's fork server, which lives as long as the `with` block; nothing if it is off.

    A failure of the server is logged, and then processes start without the server. A server that
    was killed, for example by the kernel if memory runs out, is started again a few times. The
    server outlives the node's Ray, and serves the next Ray too.
    """

    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        """`env`: what Ray and all that it starts on this node see."""
        self._settings = settings
        self._env = env
        self._process: process.Process | None = None
        self._pauses = iter(PAUSES_SECONDS)
        self._changing = threading.Lock()
        self._stopping = threading.Event()

    def __enter__(self) -> ForkServer:
        if not is_on(self._settings):
            return self
        of_earlier_life = process.find_ours_or_orphaned(mark(self._settings))
        process.end(of_earlier_life, grace=0.5)
        process.raise_open_files_limit()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:
            self._stopping.set()
        if self._process is not None:
            self._process.stop(grace=1.0)
        private_dir.remove(home_of(self._settings))

    def _start(self) -> None:
        try:
            self._serve(home_of(self._settings))
        except (OSError, process.StartError) as error:
            self._is_gone(str(error))

    def _is_gone(self, why: str) -> None:
        """Stop the server for good. Processes start more slowly from now on."""
        log.warning(
            "no fork server (%s): each process of the job imports everything itself, "
            "and starts some %.0f s slower",
            why,
            IMPORT_SECONDS,
        )

    def _serve(self, home: Path) -> None:
        write_shim(home)
        # The first variable stays as it is in every fork: from it Ray finds where titles go. The
        # last leaves room.
        first = {"SPT_NOENV": self._env.get("SPT_NOENV", "1")}
        padding = {proc_view.PADDING: proc_view.padding(PADDING_BYTES)}
        ours = process.marks(mark(self._settings)) | padding
        server = self._process = process.Process(
            "fork-server",
            [
                *program(Program.FORK_SERVER, str(home), str(os.getpid())),
                *(PRELOADED, proc_view.padding(TITLE_BYTES)),
            ],
            env=first | dict(self._env) | ours,
            log_to=RunFiles(self._settings.run_dir).logs
            / f"fork-server-{self._settings.node_name}.log",
        )
        server.on_exit(lambda code: self._ended(code, server.tail(1)))
        threading.Thread(target=self._say_state, args=(home, server), daemon=True).start()

    def _say_state(self, home: Path, server: process.Process) -> None:
        """Once it has imported everything, and answers."""

        def ask() -> str:
            if not server.running:
                return ""
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(home / "socket"))
                    client.sendall(STATE_REQUEST)
                    state = client.recv(100).decode()
            except OSError as error:
                raise wait.NotYetError(str(error)) from None
            if not state:
                raise wait.NotYetError("it has ended")
            return state

        with suppress(wait.GaveUpError, wait.InterruptedWaitError):
            if state := wait.until(
                "the fork server", ask, timeout=START_SECONDS, stop=self._stopping
            ):
                log.info("the fork server is %s", state)

    def _ended(self, code: int, last_words: str) -> None:
        if self._stopping.is_set():
            return
        killed = code > 128  # by a signal
        pause = next(self._pauses, None) if killed else None
        if pause is None:
            self._is_gone("it was killed too often" if killed else last_words)
            return
        log.warning("the fork server was killed, and is started again after %.0f s", pause)
        self._stopping.wait(pause)
        with self._changing:
            if not self._stopping.is_set():
                self._start()


def is_on(settings: Settings) -> bool:
    return settings.fork_server and settings.recipe == "builtin"


def python(settings: Settings) -> str:
    """Return the program that starts the job's processes on this node: the shim, if it can run."""
    if not is_on(settings):
        return sys.executable
    shim = home_of(settings) / "python"
    if not os.access(shim, os.X_OK):
        if not shim.parent.exists():
            log.warning("the fork server is not used: %s is gone", shim.parent)
        return sys.executable
    try:
        private_dir.check(shim.parent)
    except OSError as error:
        log.warning("the fork server is not used: %s", error)
        return sys.executable
    return str(shim)


def with_python(settings: Settings, ray: str) -> list[str]:
    """Return the command that starts the program `ray`, which starts its workers with `python`."""
    shim = python(settings)
    if shim == sys.executable:
        return [ray]
    return [sys.executable, str(BESIDE / "ray_start.py"), shim, ray]


def mark(settings: Settings) -> str:
    """The mark of the server. It differs from that of the node's Ray, which the server outlives."""
    return f"{settings.node_mark}/fork-server"


def home_of(settings: Settings) -> Path:
    return private_dir.of_node(settings.node_mark) / "fork"


def write_shim(home: Path) -> None:
    """As a program that this interpreter runs, with neither site-packages nor variables.

    Raises OSError.
    """
    private_dir.make(home)
    first = f"#!{sys.executable} -IS\n"
    if " " in sys.executable or len(os.fsencode(first)) > LONGEST_FIRST_LINE:
        raise OSError(f"{sys.executable} cannot stand in a program's first line")
    fresh = home / "python.new"
    fresh.write_text(first + (BESIDE / "shim.py").read_text())
    fresh.chmod(0o755)
    fresh.rename(home / "python")
