"""Lines that a launch prints in the job's log and that the head reads: one writer, one pattern."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from enum import StrEnum

MEASURES = ("loss", "reward", "kl", "eval")
"""Numbers of a step's line, in their order."""
STEP = re.compile(
    r"rollcall: step (?P<step>\d+)(?:/(?P<total_steps>\d+))?"
    + "".join(rf"(?: {name} (?P<{name}>\S+))?" for name in MEASURES)
    + "$"
)
"""A finished step, often behind a progress bar without an end of its own."""
FINISHED = "rollcall: finished"
"""Rank 0's script has run to its end: exit code 0 alone does not say it."""

CORRUPTION = "silent data corruption on this node"
"""A rank prints it whose bits are wrong: Ray adds the node's address to the line."""


class Part(StrEnum):
    """Parts of a training between two steps, or after the last one, which may take long."""

    EVALUATION = "evaluation"
    SAVE = "save"
    EXPORT = "export"


PART = re.compile(rf"rollcall: in (?P<part>{'|'.join(Part)}) (?P<count>[0-9]{{1,15}})$")
"""A sign of life: the part has begun, or goes on."""
OF_TORCH = re.compile(r"\[rank\d+\]: ?")
"""Prefix of each line of an exception that nothing has caught in a rank of torch.distributed."""
ENDED_RANK = re.compile(r"^ranks? .* (?:ended with exit code|was ended by)\b")
"""The end of a rank that failed."""
LONGEST_WORDS = 300
"""Characters of its last words that the line on a rank's end repeats."""
ERROR_OF_RANK = re.compile(r"^ranks? .*? ended with exit code \d+: (?P<error>.*?)(?: \(log: .*)?$")
"""What a rank has said last, in the line on its end: it has printed that itself before."""
KILLED_RANK = re.compile(r"^ranks? .* was ended by SIG(KILL|SEGV|BUS|ILL|FPE)\b")
"""The end of a rank by a signal. Its peers only miss it: the network is well.

SIGABRT is not here: with it, a rank ends itself after a collective that has failed.
"""
ENDING = (
    *(signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL),
    *(signal.SIGSEGV, signal.SIGTERM),
)
"""Signals that end a program, and that its exit code may tell."""


def step_line(
    step: int, total: int | None = None, measured: Mapping[str, float] | None = None
) -> str:
    """Return the line of a finished step, which STEP reads. `measured`: by MEASURES' names."""
    known = measured or {}
    of = "" if total is None else f"/{total}"
    numbers = "".join(f" {name} {known[name]:.6g}" for name in MEASURES if name in known)
    return f"rollcall: step {step}{of}{numbers}"


def part_line(part: Part, count: int) -> str:
    """Return the sign of life that PART reads. Each of a part has another count."""
    return f"rollcall: in {part} {count}"


def ended_rank(who: str, node: str, code: int) -> str:
    """Return the line on the end of a failed rank."""
    if (number := signal_of(code)) is None:
        return f"{who} on {node} ended with exit code {code}"
    name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
    told = f" (exit code {code})" if code > 0 else ""
    often = ", often for lack of memory" if number == signal.SIGKILL else ""
    return f"{who} on {node} was ended by {name}{told}{often}"


def signal_of(code: int) -> int | None:
    """Return the signal that a code tells: -9, 137 of a shell, 247 of DeepSpeed; else None."""
    if code < 0:
        return -code
    return next((number for number in ENDING if code in (128 + number, 256 - number)), None)
