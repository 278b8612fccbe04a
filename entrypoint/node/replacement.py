"""Tells which node is needed, and has the user's program bring one (ROLLCALL_REPLACE_COMMAND).

The program runs in a thread's care, one at a time, with a time limit. What it did is in the
journal. Its output is in RUN/logs/replace.log, with secrets masked.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from contract.durations import duration
from contract.files.append import append_line
from contract.lease import SupersededError
from contract.redaction import redact, secret_texts
from contract.run_dir import RunFiles
from entrypoint.cluster.lost_nodes import Attendance, LostNode
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.roll import SILENT_SECONDS
from entrypoint.config.settings import Settings
from entrypoint.job.failures.hang import FROZEN_SECONDS
from entrypoint.processes.process import Process, StartError
from entrypoint.run.journal import Journal

log = logging.getLogger(__name__)

VARIABLE = "ROLLCALL_REPLACE_COMMAND"
LOOK_SECONDS = 1.0
"""Interval between looks at the roll."""
COMMAND_SECONDS = 600.0
"""Time limit of one run of the program."""
POLL_SECONDS = 0.5
AGAIN_SECONDS = 10.0
"""Pause after a failure of the program; it doubles with each failure in a row."""
LINES = 1000
"""Of the program's output, the last ones, that are read."""
MOST_OUTPUT = 20_000
"""Characters of the program's output that are kept."""


@dataclass(slots=True)
class Requests:
    """Which lost nodes another node is asked for: each once, and no more than the run lacks.

    As many lost nodes are open as nodes are lacking. When others come, those places are filled
    first for which one is on its way, then those that are open for longest. Times are seconds of a
    monotonic clock.
    """

    wanted: int
    """Workers and spares that are to be there."""
    patience: float
    """How long a node that was asked for may take to come."""
    _open: list[str] = field(default_factory=list)
    """Lost nodes in whose place none has come, as they were lost."""
    _filled: list[str] = field(default_factory=list)
    """Lost nodes in whose place others have come, the newest last."""
    _awaited: dict[str, float] = field(default_factory=dict)
    """Node → since when another is on its way."""
    runs: Counter[str] = field(default_factory=Counter)
    """Open node → how often the program has run for it."""

    def due(self, seen: Attendance, now: float) -> list[LostNode]:
        """Return the lost nodes for which another node is needed and not on its way."""
        lost = {node.name: node for node in seen.lost}
        fresh = [name for name in lost if name not in (*self._open, *self._filled)]
        self._open = [name for name in (*self._open, *fresh) if name in lost]
        self._filled = [name for name in self._filled if name in lost]
        lacking = max(0, self.wanted - len(seen.heard) - len(seen.away))
        coming = sorted(self._open, key=lambda name: name not in self._awaited)
        for name in coming[: max(0, len(coming) - lacking)]:
            self._open.remove(name)
            self._filled.append(name)
            self._awaited.pop(name, None)
        while self._filled and len(self._open) < lacking:
            self._open.append(self._filled.pop())
        for name, at in list(self._awaited.items()):
            if name in seen.heard or now - at > self.patience:
                del self._awaited[name]
        for name in set(self.runs) - self.open:
            del self.runs[name]
        return [lost[name] for name in self._open if name not in self._awaited]

    @property
    def open(self) -> frozenset[str]:
        return frozenset(self._open)

    def brought(self, name: str, at: float) -> None:
        """Note that the program says that it has asked for a node in the place of `name`."""
        self._awaited[name] = at


@contextmanager
def watching(settings: Settings, registry: NodeRegistry, journal: Journal) -> Iterator[None]:
    """Tell of nodes that are needed, and have them brought, until the block ends."""
    over = threading.Event()
    watch = _Watch(settings, registry, journal, over)
    thread = threading.Thread(target=watch.run, name="replacement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


class _Watch:
    def __init__(
        self, settings: Settings, registry: NodeRegistry, journal: Journal, over: threading.Event
    ) -> None:
        self._settings, self._registry, self._journal = settings, registry, journal
        self._files, self._over = RunFiles(settings.run_dir), over
        wanted = registry.expected + settings.spare_workers
        self._requests = Requests(wanted, settings.replace_timeout)
        self._told: set[str] = set()
        """Open nodes that the journal has told of."""
        self._exhausted: set[str] = set()
        """Open nodes of which the journal has said that the program runs for them no more."""
        self._failures = 0
        self._not_before = 0.0

    def run(self) -> None:
        awake, looked = 0.0, time.monotonic()
        with suppress(SupersededError):  # the main thread ends this head
            self._take_over(looked)
            while not self._over.wait(LOOK_SECONDS):
                if time.monotonic() - looked > LOOK_SECONDS + FROZEN_SECONDS:
                    awake = time.monotonic() + SILENT_SECONDS
                if time.monotonic() >= awake:
                    self._try_to_look()
                looked = time.monotonic()

    def _take_over(self, now: float) -> None:
        """Note which nodes the head before this one has asked for."""
        asked: dict[str, float] = {}
        with suppress(OSError, ValueError):
            for event in self._journal.landmarks("replace", "replace-failed"):
                name = str(event["details"].get("node"))
                age = time.time() - datetime.fromisoformat(event["at"]).timestamp()
                asked[name] = now - max(0.0, age)
                if event["kind"] == "replace-failed":
                    del asked[name]
        for name, at in asked.items():
            self._requests.brought(name, at)

    def _try_to_look(self) -> None:
        try:
            self._look()
        except OSError as error:  # storage that does not answer: the head itself says so
            log.debug("the journal does not take what is told of a lost node: %s", error)

    def _look(self) -> None:
        seen = self._registry.attendance(self._settings.node_timeout)
        now = time.monotonic()
        due = self._requests.due(seen, now)
        self._told &= self._requests.open
        self._exhausted &= self._requests.open
        for node in due:
            if node.name not in self._told:
                self._told.add(node.name)
                self._tell_of_need(node)
        if self._settings.replace_command and now >= self._not_before:
            for node in filter(self._may_run, due):
                self._replace(node, self._settings.replace_command)
                return  # the roll may be another by now

    def _tell_of_need(self, node: LostNode) -> None:
        runs = f"{VARIABLE} is to bring one" if self._settings.replace_command else ""
        sentence = f"another node is needed in the place of {node.name}: {node.reason}"
        details = {"node": node.name, "address": node.address, "rank": node.rank}
        self._journal.record("node-needed", "; ".join(filter(None, [sentence, runs])), **details)

    def _may_run(self, node: LostNode) -> bool:
        runs = self._requests.runs[node.name]
        if runs < self._settings.max_restarts:
            return True
        if node.name not in self._exhausted:
            self._exhausted.add(node.name)
            self._journal.record(
                "replace-failed",
                f"{VARIABLE} has run {runs} times for {node.name}, and no node has come "
                "(ROLLCALL_MAX_RESTARTS): start one by hand",
                node=node.name,
            )
        return False

    def _replace(self, node: LostNode, command: Sequence[str]) -> None:
        self._requests.runs[node.name] += 1
        details: dict[str, Any] = {"node": node.name, "number": self._requests.runs[node.name]}
        self._journal.record("replace", f"{VARIABLE} runs for {node.name}", **details)
        began = time.monotonic()
        if (ran := run(command, node, self._settings, self._over)) is None:
            return
        self._keep(node, ran.output)
        now = time.monotonic()
        took = f"{VARIABLE} for {node.name} {ran.how}, after {duration(now - began)}"
        details["exit_code"] = ran.exit_code
        if ran.exit_code == 0:
            self._failures = 0
            self._requests.brought(node.name, now)
            self._journal.record("replace", f"{took}{ran.last_line}", **details)
            return
        self._not_before = now + AGAIN_SECONDS * 2**self._failures
        self._failures += 1
        self._journal.record("replace-failed", f"{took}{ran.last_line}", **details)

    def _keep(self, node: LostNode, said: str) -> None:
        hidden = secret_texts(self._settings.environ).union(self._settings.secrets)
        text = redact(said[-MOST_OUTPUT:], hidden)
        with suppress(OSError):
            append_line(self._files.logs / "replace.log", f"--- {node.name}\n{text}".encode())


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run of the program has come to."""

    exit_code: int | None
    """None if it did not start, or was killed."""
    how: str
    output: str

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""


def run(
    command: Sequence[str], node: LostNode, settings: Settings, over: threading.Event
) -> Ran | None:
    """Run the program for a lost node until its end, or its time limit; None if `over` is set."""
    values = {
        "node": node.name,
        "rank": "" if node.rank is None else str(node.rank),
        "address": node.address,
        "reason": node.reason,
    }
    of_node = {f"ROLLCALL_LOST_{name.upper()}": text for name, text in values.items()}
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        argv = [filled(word, values) for word in command]
        try:
            program = Process(VARIABLE, argv, env={**settings.environ, **of_node}, log_to=output)
        except StartError as error:
            return Ran(None, "does not start", str(error))
        deadline = time.monotonic() + COMMAND_SECONDS
        try:
            while program.wait(POLL_SECONDS) is None:
                if over.is_set():
                    return None
                if time.monotonic() > deadline:
                    how = f"did not end within {duration(COMMAND_SECONDS)}, and was killed"
                    return Ran(None, how, program.tail(LINES))
            return Ran(program.exit_code, f"ended with {program.exit_code}", program.tail(LINES))
        finally:
            program.stop(grace=1.0)


def filled(word: str, values: Mapping[str, str]) -> str:
    """Return a word of the command with the lost node's `{node}`, `{rank}` and so on in it."""
    for name, text in values.items():
        word = word.replace(f"{{{name}}}", text)
    return word
