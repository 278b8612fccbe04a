"""Runs the all-reduce over all nodes before an attempt, in a separate process with a deadline.

On GPUs it runs before the first attempt. It starts with the roll call, so that torch is loaded on
the nodes that are there before the last one arrives.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.check_names import CheckName
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.job import collective
from entrypoint.job.collective import CollectiveResult
from entrypoint.machine import inventory
from entrypoint.net import wait
from entrypoint.preflight.verdict import Verdict
from entrypoint.processes.process import Process, StartError, marks
from entrypoint.processes.programs import program
from entrypoint.run.failure_classes import FailureClass

log = logging.getLogger(__name__)

ROUND_SECONDS = 60.0
"""Limit for one all-reduce, including the start of its processes."""
LONGEST_SECONDS = 600.0
POLL_SECONDS = 0.1
STOP_GRACE_SECONDS = 1.0
LINES = 200
"""Lines of its output to search for the result, between Ray's warnings."""


@dataclass(slots=True)
class CollectiveCheck:
    settings: Settings
    address: str
    """`host:port` of the head's Ray."""
    env: Mapping[str, str]
    argv: Sequence[str] = program(Program.ALLREDUCE)
    _after: FailureClass | None = None
    _owed: bool = True
    """A check may be due: none has passed since the last failure."""
    _process: Process | None = None

    @property
    def asked(self) -> bool:
        """Return whether the settings and the image allow the check."""
        settings = self.settings
        off = (
            settings.preflight is PreflightMode.OFF
            or settings.ray_address is not None  # this process is not a node of that Ray
            or CheckName.NODES_COLLECTIVE in settings.preflight_skip
        )
        return not off and bool(inventory.installed("torch"))

    def ended(self, failure: FailureClass) -> None:
        """Note how an attempt ended. A check that is still due for an earlier one stays due."""
        if not self._owed:
            self._after, self._owed = failure, True

    def warm_up(self, head: NodeInfo, expected_workers: int) -> None:
        """Start before the workers are there, for the first attempt of a GPU cluster."""
        first = self._owed and self._after is None and self._process is None
        if first and self.asked and expected_workers and head.inventory.get("gpus", 0):
            count, within = 1 + expected_workers, self.settings.roll_timeout
            self._begin([head], "--count", f"{count}", "--within", f"{within:g}")

    def ask(self, node_infos: Sequence[NodeInfo], stop: threading.Event) -> CollectiveResult | None:
        """Run the check; None if it is not due or has no result. Raises InterruptedWaitError."""
        among = collective.members(node_infos)
        if not (self._owed and self.asked and collective.due(self._after, among)):
            self.close()
            self._owed = False
            return None
        names = sorted(info.node for info in among)
        row = self._row(stop)
        if row is None or row["nodes"] != names:
            self._begin(among, "--nodes", ",".join(names))
            row = self._row(stop)
        answer = collective.judge(row, collective.expected(among)) if row else None
        self._owed = answer is not None and answer.verdict is Verdict.FAIL
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_GRACE_SECONDS)
            self._process = None

    def _begin(self, among: Sequence[NodeInfo], *options: str) -> None:
        self.close()
        least = collective.FAILS * collective.expected(among)
        common = ("--address", self.address, "--timeout", f"{ROUND_SECONDS:g}")
        try:
            self._process = Process(
                "the collective check",
                [*self.argv, *common, "--least", f"{least:g}", *options],
                env={**self.env, **marks(self.settings.node_mark)},
                log_to=RunFiles(self.settings.run_dir).logs / "collective.log",
            )
        except StartError as error:
            log.warning("%s", error)

    def _row(self, stop: threading.Event) -> dict[str, Any] | None:
        """Return the result that the process prints at its end; None if there is none."""
        process, deadline = self._process, time.monotonic() + LONGEST_SECONDS
        if process is None:
            return None
        try:
            while process.wait(POLL_SECONDS) is None and time.monotonic() < deadline:
                if stop.is_set():
                    raise wait.InterruptedWaitError("asked to stop during the collective check")
            lines = process.tail(LINES).splitlines()
            rows = [json.loads(line) for line in lines if line.startswith('{"verdict"')]
            if rows:
                return dict(rows[-1])
            ended = "it hangs" if process.running else f"it ended with {process.exit_code}"
            log.warning("the collective check cannot tell: %s: %s", ended, "".join(lines[-1:]))
            return None
        finally:
            self.close()
