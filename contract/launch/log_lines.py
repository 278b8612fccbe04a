"""Lines that a launch prints in the job's log and that the head reads: one writer, one pattern."""

from __future__ import annotations

import re
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


def ended_rank(who: str, node: str, how: str) -> str:
    """Return the line on the end of a failed rank. `how`: a signal's name or an exit code."""
    said = f"ended with exit code {how}" if how.isdecimal() else f"was ended by {how}"
    return f"{who} on {node} {said}"
