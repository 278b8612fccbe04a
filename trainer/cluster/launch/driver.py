"""Follows the ranks of one attempt on all nodes, until they have ended or one of them fails.

Every line of a rank goes to `RUN/logs/attempt-N-rank-R.log`, and to this process's output, behind
the rank and the address of its node.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contract import lease
from contract.exit_codes import ExitCode
from contract.files.child_variables import ATTEMPT, RESUME_CHECKPOINT, RESUME_FROM
from contract.files.log_copy import Copy, lines_of
from contract.launch import ranks
from contract.launch.launcher_flags import Launch
from contract.launch.log_lines import LONGEST_WORDS, OF_TORCH, ended_rank, signal_of
from contract.launch.ranks import Meeting, RankProcess
from contract.redaction import secret_texts
from contract.resources import NodeResources
from trainer.cluster.launch.agent import Look
from trainer.cluster.launch.launcher_report import FAILED, LauncherReport
from trainer.cluster.stop import StopRequest

POLL_SECONDS = 0.2
EARLY_SECONDS = 60.0
"""Ranks that have ended so long before the others are named: the others may wait for them."""
MOST_NAMED = 3
PASSED_ON = frozenset(
    {ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.RUN_DIR, ExitCode.STOPPED},
)
"""Exit codes of a rank that say what is to be done; any other failure is 70."""
PASSED_DOWN = (
    *(ATTEMPT, RESUME_FROM, "ROLLCALL_RUN_DIR", RESUME_CHECKPOINT),
    *(lease.VARIABLE, lease.HOLDER_VARIABLE),
)
"""Variables of the driver that the ranks have, too. The head finds processes by the attempt."""
ERROR = re.compile(r"(?:\[\w+\]:)?(?:[\w.]*(?:Error|Exception|Interrupt)\b|\S+: error: )")
"""Start of a line that names the error, a traceback's or argparse's, also behind a prefix.

Torch's launcher copies the two outputs of a rank one by one: the last line may be an earlier one.
"""
BAR = re.compile(r"\d+%\||\d+(?:/\d+|it) \[\d+:\d\d")
"""In the line of a progress bar, which may be cut off; it says of no error."""


class NodeLostError(Exception):
    """A node does not answer any more; the message names the node and the reason."""


@dataclass(frozen=True, slots=True)
class RankNode:
    """A node that runs ranks."""

    id: str
    """Ray's id."""
    name: str
    address: str
    is_head: bool


class Agents(Protocol):
    """The agents of all nodes."""

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call the method on every agent at once, each with its arguments.

        Raises NodeLostError, and RayError if the call itself fails.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How the ranks of one attempt start."""

    number: str
    logs: Path
    directory: str | None
    """Where the job starts, on every node; None: where Ray has put its `working_dir`."""
    threads: str | None = None
    """OMP_NUM_THREADS, if the user has set it."""


@dataclass(slots=True)
class LastWords:
    """The last line of a rank that names an error, else its last line but for progress bars."""

    line: str = ""
    names_error: bool = False

    def hear(self, line: str) -> None:
        names_error = ERROR.match(line) is not None
        says = bool(line.strip()) and not BAR.search(line)
        if names_error or (says and not self.names_error):
            self.line, self.names_error = line.strip(), names_error


@dataclass(slots=True)
class RankOutput:
    """The output of one rank process."""

    process: RankProcess
    node: RankNode
    logs: Path
    attempt: str
    offset: int = field(init=False, default=0)
    """Bytes that are read."""
    _words: dict[str, LastWords] = field(default_factory=lambda: defaultdict(LastWords))
    """By the prefix of accelerate's launcher; "" if no launcher starts several ranks."""
    _report: LauncherReport = field(default_factory=LauncherReport)
    _copy: Copy = field(init=False)

    def __post_init__(self) -> None:
        self._copy = Copy(self.log, self._tell, secret_texts(os.environ))

    @property
    def log(self) -> Path:
        return self.logs / f"attempt-{self.attempt}-{self.process.log}.log"

    def take(self, data: bytes, end: int) -> bool:
        """Copy what is new, up to the offset `end`; return whether there is any."""
        is_new, self.offset = end > self.offset, end
        self._copy.take(data)
        return is_new

    def close(self) -> None:
        self._copy.close()

    def exit_code(self, of_process: int) -> int:
        """Return the exit code of the rank, for that of its process."""
        of_rank = self._report.exit_code
        return of_rank if of_rank is not None and of_process == FAILED else of_process

    def failure(self, code: int) -> str:
        """Return a sentence on the end of the rank with this exit code."""
        who = f"rank {self._report.rank}" if self._report.rank else self.process.name
        last = self._words[self._report.speaker]
        words, between = last.line[:LONGEST_WORDS], ": "
        if signal_of(code) is not None:  # the words are not why it ended
            between = "; its last error: " if last.names_error else "; its last output: "
        return ended_rank(who, self.node.name, code) + (f"{between}{words}" if words else "")

    def _tell(self, text: str) -> None:
        for line in lines_of(text):
            print(f"{self._speaker()}{line}", flush=True)
            speaker = self._report.read(line) if self.process.by_launcher else ""
            if speaker is not None:
                said = line.removeprefix(speaker)
                of_torch = OF_TORCH.match(said)
                self._words[speaker].hear(said[of_torch.end() :] if of_torch else said)

    def _speaker(self) -> str:
        """Return the prefix by which the evidence of a failure finds the node; none on the head."""
        if self.node.is_head:
            return "" if self.process.name == "rank 0" else f"({self.process.name}) "
        return f"({self.process.name}, ip={self.node.address}) "


@dataclass(slots=True)
class Ranks:
    """The rank processes of all nodes, once they have started."""

    agents: Agents
    outputs: list[list[RankOutput]]
    """Node by node."""
    stop: StopRequest
    _failed: tuple[RankOutput, int] | None = None
    _asked: bool = False
    _ended: dict[str, float] = field(default_factory=dict)
    """The ranks that have ended with 0, as `rank 1 on w`, and when; monotonic clock, seconds."""
    _told: bool = False
    """The log says that some have ended long before the others."""

    def follow(self) -> ExitCode:
        """Return the exit code of the attempt when all ranks have ended. Raises NodeLostError."""
        try:
            while not self._look():
                time.sleep(POLL_SECONDS)
        finally:
            for output in self._all():
                output.close()
        if self._asked:
            return ExitCode.STOPPED
        if self._failed is None:
            return ExitCode.FINISHED
        output, code = self._failed
        before = f"; before it, {self._early()}" if self._ended else ""
        print(f"{output.failure(code)} (log: {output.log}){before}", flush=True)
        return ExitCode(code) if code in PASSED_ON else ExitCode.JOB_FAILED

    def _look(self) -> bool:
        """Read what is new; return whether all ranks have ended and all output is read."""
        if self.stop.requested and not self._asked:
            self._asked = True
            self._tell("stop")
        offsets = [([output.offset for output in node],) for node in self.outputs]
        looks: list[Look] = self.agents.each("look", offsets)
        news = [
            output.take(data, end)
            for node, look in zip(self.outputs, looks, strict=True)
            for output, data, end in zip(node, look.output, look.ends, strict=True)
        ]
        self._note_ends(looks)
        if self._failed is None and (failed := self._first_failure(looks)):
            self._failed = failed
            if not self._asked:
                self._tell("end")
        ended = all(
            len(look.ended) == len(node) for node, look in zip(self.outputs, looks, strict=True)
        )
        return ended and not any(news)

    def _first_failure(self, looks: Sequence[Look]) -> tuple[RankOutput, int] | None:
        """Return a rank that failed. A signal's victim comes first: its peers fail in its wake."""
        failed = [
            (node[number], node[number].exit_code(code))
            for node, look in zip(self.outputs, looks, strict=True)
            for number, code in look.ended.items()
            if code != 0
        ]
        return min(failed, key=lambda one: signal_of(one[1]) is None, default=None)

    def _note_ends(self, looks: Sequence[Look]) -> None:
        """Note who ends with 0 before anybody fails; say so if others run on for long."""
        if self._failed is not None or self._asked:
            return
        now = time.monotonic()
        for node, look in zip(self.outputs, looks, strict=True):
            for number, code in look.ended.items():
                output = node[number]
                if output.exit_code(code) == 0:
                    self._ended.setdefault(f"{output.process.name} on {output.node.name}", now)
        left = sum(len(node) for node in self.outputs) - len(self._ended)
        if not self._told and left and any(now - at > EARLY_SECONDS for at in self._ended.values()):
            self._told = True
            others = f"{left} other ranks run on" if left > 1 else "another rank runs on"
            when = f"as os._exit(0) does, {EARLY_SECONDS:g} s ago"
            print(f"{self._early()}, {when}, and {others}", flush=True)

    def _early(self) -> str:
        """Return who has ended with 0: with os._exit(0), a rank breaks what the others do."""
        names = [*self._ended]
        named = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        return f"{named} ended with exit code 0"

    def _tell(self, method: str) -> None:
        self.agents.each(method, [() for _ in self.outputs])

    def _all(self) -> list[RankOutput]:
        return [output for node in self.outputs for output in node]


def begin(
    launch: Launch,
    nodes: Sequence[tuple[RankNode, NodeResources]],
    agents: Agents,
    attempt: Attempt,
    stop: StopRequest,
) -> Ranks:
    """Start the ranks on the nodes, whose order is the order of the ranks.

    `agents`: in the same order. Raises NodeLostError.
    """
    host = nodes[0][0].address
    port: int = agents.each("free_port", [(node.address,) for node, _ in nodes])[0]
    meeting = Meeting(host, port, f"rollcall-{attempt.number}")
    resources = [resources for _, resources in nodes]
    processes = ranks.processes(launch, resources, meeting, attempt.threads)
    attempt.logs.mkdir(parents=True, exist_ok=True)
    names = ", ".join(node.name for node, _ in nodes)
    print(f"the ranks on {names} meet at {host}:{port}", flush=True)
    passed = {name: os.environ[name] for name in PASSED_DOWN if name in os.environ}
    agents.each(
        "start",
        [
            (own, passed, node.address, attempt.directory)
            for (node, _), own in zip(nodes, processes, strict=True)
        ],
    )
    outputs = [
        [RankOutput(process, node, attempt.logs, attempt.number) for process in own]
        for (node, _), own in zip(nodes, processes, strict=True)
    ]
    return Ranks(agents, outputs, stop)
