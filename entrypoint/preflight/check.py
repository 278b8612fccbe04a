"""A check and its result, and the report of all checks of a node.

A probe runs in a daemon thread of its own, up to the check's timeout. So a probe that hangs (a
stale mount, a driver that does not answer) gives a verdict, and does not hang the node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from contract.background import in_background
from contract.exit_codes import ExitCode
from entrypoint.config.role import Head, Worker
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.machine import inventory
from entrypoint.machine.gpus import discover
from entrypoint.machine.view import THIS_MACHINE, Machine
from entrypoint.preflight.verdict import SEVERITY, Finding, Verdict
from entrypoint.processes import process


@dataclass(frozen=True, slots=True)
class Result:
    """A check's answer in the report."""

    name: str
    verdict: Verdict
    evidence: str
    remedy: str
    seconds: float
    exit_code: ExitCode = ExitCode.UNFIT
    """The node's exit code if this stops it."""
    ends_with_start: bool = False
    """As in Finding."""


@dataclass(frozen=True, slots=True)
class Context:
    """What probes may look at."""

    role: Head | Worker
    settings: Settings
    machine: Machine = THIS_MACHINE
    running_pid: int | None = None
    """The entrypoint of this node if it runs already and is only examined."""

    @property
    def environ(self) -> Mapping[str, str]:
        return self.settings.environ

    @property
    def gpus(self) -> list[str]:
        """The GPUs that this node uses, by number or id."""
        return discover.of_node(self.settings, self.machine)

    @property
    def why_no_gpu(self) -> str:
        """Why this node uses no GPU; "" if it uses one."""
        return discover.why_none(self.settings, self.machine)

    @property
    def ends_leftovers(self) -> bool:
        """Whether the node starts after the checks, and ends what its earlier life has left."""
        return self.running_pid is None

    def own_processes(self) -> tuple[set[int], str]:
        """The processes that may be this node's here, and a phrase that says whose they are."""
        mark = self.settings.node_mark
        if self.running_pid is None:
            left = {found.pid for found in process.find_ours_or_orphaned(mark)}
            return left, "left by an earlier life of this node"
        running = {self.running_pid, *(found.pid for found in process.find_marked(mark))}
        return running, f"of this node, which runs here (pid {self.running_pid})"


@dataclass(frozen=True, slots=True)
class Check:
    """One question to this node."""

    name: str
    question: str
    probe: Callable[[Context], Finding]
    timeout: float = 5.0
    """Seconds after which the probe counts as hanging, which fails the check."""
    exit_code: ExitCode = ExitCode.UNFIT
    """The node's exit code if this check stops it, with a fault that does not pass by itself."""
    loads: bool = False
    """Whether the check loads the machine, and so runs after the others."""

    def run(self, context: Context) -> Result:
        return self.result(self.start(context))

    def start(self, context: Context) -> Future[Result]:
        """Begin to ask, in a thread that does not keep the process alive."""
        return in_background(self.name, lambda: self._ask(context))

    def result(self, answer: Future[Result], elapsed: float = 0.0) -> Result:
        """The answer, waited for within what `elapsed` seconds leave of the timeout.

        On a busy machine it has twice the time.
        """
        limits, busy = [self.timeout], ""
        for limit in limits:
            try:
                return answer.result(max(0.0, limit - elapsed))
            except TimeoutError:
                elapsed = max(elapsed, limit)
                if not busy and inventory.is_busy():
                    busy = inventory.load()
                    limits.append(2 * self.timeout)
        evidence = f"the probe gave no answer within {limits[-1]:g} s"
        remedy = f"find out what hangs behind the question: {self.question}"
        if busy:
            evidence += f": the machine may be too busy ({busy})"
            remedy = (
                f"start again when it is less busy, or add {self.name} to "
                f"ROLLCALL_PREFLIGHT_SKIP. If it is not busy, {remedy}"
            )
        return Result(self.name, Verdict.FAIL, evidence, remedy, limits[-1], self.exit_code)

    def _ask(self, context: Context) -> Result:
        started = time.monotonic()
        try:
            finding = self.probe(context)
        except Exception as error:  # a probe that raises any error gives a warning
            evidence = f"the probe could not tell: {type(error).__name__}: {error}"
            finding = Finding(Verdict.WARN, evidence)
        seconds = round(time.monotonic() - started, 3)
        code = ExitCode.RETRY if finding.passes else self.exit_code
        return Result(
            self.name,
            finding.verdict,
            finding.evidence,
            finding.remedy,
            seconds,
            code,
            finding.ends_with_start,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one node."""

    mode: PreflightMode
    results: Sequence[Result] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; `pass` if nothing was examined."""
        verdicts = [Verdict.PASS, *(result.verdict for result in self.results)]
        return max(verdicts, key=SEVERITY.__getitem__)

    @property
    def fails(self) -> tuple[Result, ...]:
        return self._with(Verdict.FAIL)

    @property
    def warnings(self) -> tuple[Result, ...]:
        return self._with(Verdict.WARN)

    @property
    def exit_code(self) -> ExitCode:
        """The node's exit code, 0: continue; 75 only if every fault may pass by itself."""
        if self.mode is not PreflightMode.STRICT or not self.fails:
            return ExitCode.FINISHED
        # 73 wins: it says more than 76, and another node would not help.
        codes = sorted({result.exit_code for result in self.fails} - {ExitCode.RETRY})
        return codes[0] if codes else ExitCode.RETRY

    def _with(self, verdict: Verdict) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.verdict is verdict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "checks": [_as_dict(result) for result in self.results],
        }


def _as_dict(result: Result) -> dict[str, Any]:
    """Return what programs read; the rest is the node's."""
    of_node = ("exit_code", "ends_with_start")
    return {key: value for key, value in asdict(result).items() if key not in of_node}
