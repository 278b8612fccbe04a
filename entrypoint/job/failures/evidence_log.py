"""Reads the evidence of a failure from the lines of a job's log, for any framework.

The patterns of each class are in `entrypoint.run.failure_classes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from contract.launch.log_lines import ERROR_OF_RANK, LONGEST_WORDS, ended_rank
from entrypoint.job.failures.classes import Evidence
from entrypoint.job.failures.error_lines import OF_PEERS, ErrorLines, may_be_error, points_elsewhere
from entrypoint.job.failures.tracebacks import Line, Part, Tracebacks, in_a_panel
from entrypoint.machine import oom_kills, xid
from entrypoint.run.failure_classes import FAILURES, FailureClass

CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Terminal control sequences (ECMA-48): colours, cursor movements, titles."""
SPEAKER = re.compile(
    r"^(?:\((?:[^()]*?\bpid=\d+)?(?:[^()]*?\bip=(?P<ip>[^(),\s]+))?[^()]*\) ?"
    r"|\[(?:rank|default)\d+\]: ?)+"
)
"""Prefix that names the process of a line: (PolicyActor pid=7, ip=10.0.0.2), (raylet), [rank3]:,
[default0]: of torch's launcher.
Ray omits the address if the process runs on the head."""
RANK = re.compile(r"\[rank\d+\]: ?$")
"""Prefix of an exception that nothing has caught in a process with torch.distributed."""
NOISE = re.compile(r"^wandb:|^ {4}|^[│╭╰]")
"""Lines that never end a job: a logger's own trouble, source code quoted in a traceback."""
DEEPSPEED_END = re.compile(r"\] exits with return code = (-\d+)$")
"""Ends what DeepSpeed's launcher says of a rank that a signal has ended."""
LOCAL_RANK = re.compile(r"--local_rank=\d+")

NO_ERROR = re.compile(
    r"^\s|^wandb:|^[│╭╰]|^(?:\S+:\s*)?(?i:warning|info|debug)\b|\w+Warning: |^\[?[IW]\d{4}"
    r"|^\d{4}-\d\d-\d\d[ T]\S+\s.*?(?:\b(?:INFO|WARNING|DEBUG)\b|\S+\.py:\d+ -- )"
)
"""Lines of the driver that are not errors: frames of a traceback, warnings, log lines."""

NOT_OWN = ("wandb:", "Running entrypoint for job ")
"""Beginnings of lines that a tracker prints, or Ray before the driver's first line."""
LONGEST_LINE = 400
MOST_RAISED = 64
"""Errors of different texts that are remembered, to find the place of the one that ended a rank."""
STALE_STEPS = 2
"""Steps after which an error has not ended the job."""

COMPILED = {
    failure: re.compile("|".join(row.patterns)) for failure, row in FAILURES.items() if row.patterns
}


def plain(text: str) -> str:
    """Return the text without terminal control sequences."""
    return CODES.sub("", text)


class EvidenceLog:
    """The evidence of one attempt. It keeps the first line of each class; later ones are echoes.

    Evidence expires when two more steps have finished: then it did not end the job.
    """

    def __init__(
        self,
        step_now: Callable[[], int],
        hint: Callable[[str], FailureClass | None] = lambda line: None,
    ) -> None:
        """`step_now`: returns the finished steps; `hint`: classifies the framework's own lines."""
        self._step_now = step_now
        self._hint = hint
        self._first: dict[FailureClass, Evidence] = {}
        self.last_error = ""
        """The driver's last own line that is not a warning."""
        self._lines = ErrorLines()
        self._relayed = ErrorLines()
        """Errors that other processes of the job print, through Ray or a launcher."""
        self._raised: dict[str, Line] = {}
        """Text of an error as a rank's end repeats it → the newest line of a traceback with it."""
        self._tracebacks: dict[str, Tracebacks] = {"": Tracebacks()}
        """Prefix of a process's lines → the traceback that it prints."""

    def read(self, line: str) -> None:
        speaker, text, address = spoken(line)
        if died := DEEPSPEED_END.search(text):
            text = _killed(text, int(died[1]))
        said = self._said(speaker, text)
        is_new = self._read_relayed(said) if speaker else self._read_own(said)
        failure = self._hint(line) or _failure_in(said.text)
        ends_rank = self._ends_rank(speaker, said)
        if not (is_new or failure or ends_rank):
            return
        step = self._step_now()
        if is_new:
            (self._relayed if speaker else self._lines).step = step
        if failure or ends_rank:
            self._add(
                Evidence(
                    failure or FailureClass.UNKNOWN,
                    said.text[:LONGEST_LINE],
                    address,
                    step=step,
                    place=said.place,
                    is_raised_there=said.is_raised_there,
                    ends_rank=ends_rank,
                )
            )

    def _ends_rank(self, speaker: str, said: Line) -> bool:
        """Return whether a rank ends by this error, and its peers did not cause it.

        torch's hook prints it, or the launch repeats it when the rank has ended.
        """
        if said.part is Part.ERROR:
            return bool(RANK.match(speaker)) and not OF_PEERS.search(said.text)
        of_rank = ERROR_OF_RANK.match(said.text[: LONGEST_LINE + LONGEST_WORDS])
        error = of_rank["error"] if of_rank else ""
        return error in self._raised and not OF_PEERS.search(error)

    def _said(self, speaker: str, text: str) -> Line:
        """Return the line as part of the traceback that this process prints, if any."""
        reader = self._tracebacks.setdefault(speaker, Tracebacks())
        said = reader.read(text)
        if said.part is Part.NONE and (panel := in_a_panel(said.text)):
            said = Line(panel, Part.NONE)
        if reader.is_idle and speaker:
            del self._tracebacks[speaker]
        if said.part is Part.ERROR:
            self._remember(said)
        elif of_rank := ERROR_OF_RANK.match(said.text[: LONGEST_LINE + LONGEST_WORDS]):
            said = self._placed(said, of_rank["error"])
        return said

    def _remember(self, raised: Line) -> None:
        words = raised.text[:LONGEST_WORDS]
        self._raised.pop(words, None)
        self._raised[words] = replace(raised, text=words)
        if len(self._raised) > MOST_RAISED:
            del self._raised[next(iter(self._raised))]

    def _placed(self, end: Line, error: str) -> Line:
        """Return the line on a rank's end with the place of the error that it repeats."""
        raised = self._raised.get(error)
        if raised is None:
            return end
        return replace(end, place=raised.place, is_raised_there=raised.is_raised_there)

    def _read_relayed(self, said: Line) -> bool:
        mild = NO_ERROR.search(said.text[:LONGEST_LINE]) is not None
        return self._relayed.read(said, mild=mild)

    def _read_own(self, said: Line) -> bool:
        """Read a line of the driver itself; return whether it is its newest error."""
        line = _own(said.text)
        mild, before = NO_ERROR.search(line) is not None, self._lines.newest
        is_new = self._lines.read(replace(said, text=line), mild=mild)
        if line and (not mild or (before and not self._lines.newest)):  # the training has gone on
            self.last_error = line
        return is_new

    def read_ray_message(self, message: str) -> None:
        """Add what Ray says about a driver that it could not start, or has lost.

        Such errors are Ray's own: they are not evidence of a usage error.
        """
        for _, text, address in map(spoken, message.splitlines()):
            if (failure := _failure_in(text)) and failure is not FailureClass.USAGE:
                self._add(Evidence(failure, text[:LONGEST_LINE], address, step=self._step_now()))

    def add_oom_kills(self, node: str, kills: int) -> str:
        """Add that the kernel has killed `kills` processes on `node`; return that as a sentence."""
        sentence = oom_kills.sentence(node, kills)
        self._add(Evidence(FailureClass.HOST_OOM, sentence, node=node, step=self._step_now()))
        return sentence

    def told_error(self, step: int) -> str:
        """Return the driver's newest error if the job ends after `step` finished steps, or "".

        If it only points to the error of another process, or if there is none, that one.
        """
        told = self._told()
        return told.newest if step - told.step < STALE_STEPS else ""

    def told_place(self) -> str:
        """Return the place of that error in the user's own code, or ""."""
        return self._told().place

    def told_is_raised_there(self) -> bool:
        """Return whether the line of that place itself has made the exception."""
        return self._told().is_raised_there

    def _told(self) -> ErrorLines:
        own = self._lines.newest or (may_be_error(self.last_error) and self.last_error)
        is_known = own and not points_elsewhere(own)
        return self._lines if is_known or not self._relayed.newest else self._relayed

    def _add(self, found: Evidence) -> None:
        known = self._first.get(found.failure)
        if known is None or not _counts(known, found.step):
            self._first[found.failure] = found

    def at(self, step: int) -> tuple[Evidence, ...]:
        """Return the evidence that counts if the job ends after `step` finished steps."""
        return tuple(found for found in self._first.values() if _counts(found, step))


def _own(text: str) -> str:
    """Return what a line of the driver says of its end; "" if a tracker or Ray has printed it."""
    # Cut first: the time of the search grows with the square of a word's length.
    return "" if text.startswith(NOT_OWN) else text[:LONGEST_LINE]


def _counts(found: Evidence, step: int) -> bool:
    return step - found.step < STALE_STEPS


def spoken(line: str) -> tuple[str, str, str | None]:
    """Return a line's prefix, the line without it, and the address if the prefix has one."""
    text = plain(line).rstrip()
    match = SPEAKER.match(text)
    if match is None:
        return "", text, None
    return match[0], text[match.end() :], match["ip"]


def _killed(told: str, code: int) -> str:
    """Return the end of a rank by a signal, of which DeepSpeed's launcher told the code."""
    rank = LOCAL_RANK.search(told)
    node, _, _ = told.partition(": [") if told[0] != "[" else ("", "", "")  # pdsh's prefix
    return ended_rank(f"rank {rank[0]}" if rank else "rank", node or "this node", code)


def _failure_in(text: str) -> FailureClass | None:
    if NOISE.search(text):
        return None
    if action := xid.action(text):
        return _of_xid(action)
    for failure, pattern in COMPILED.items():
        if pattern.search(text):
            return failure
    return None


def _of_xid(action: xid.XidAction) -> FailureClass | None:
    if action is xid.XidAction.IGNORE:
        return None
    return FailureClass.GPU_FAULT if action.node_is_unfit else FailureClass.UNKNOWN
