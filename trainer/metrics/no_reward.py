"""Says how many samples of a step have no reward, and why: once, then as often as that doubles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from contract.durations import counted
from contract.options import ended
from trainer.types import Sample

LONGEST = 300
"""Characters of a reason; the samples' file has it whole."""


class NoReward:
    def __init__(self) -> None:
        self._told = 0.0
        """The share of samples that was told last."""

    def sentence(self, step: int, samples: Sequence[Sample]) -> str:
        """Return what to tell of a step; "" if that is nothing, or nothing new."""
        errors = [sample.score.error for sample in samples if not sample.score.ok]
        share = len(errors) / max(1, len(samples))
        if not errors or share < 2 * self._told:
            return ""
        self._told = share
        have, count = ("has", "It does") if len(errors) == 1 else ("have", "They do")
        why, times = Counter(errors).most_common(1)[0]
        why = " ".join(why.split()) or "no reason is known"
        why = why if len(why) <= LONGEST else f"{why[:LONGEST]}…"
        most = "" if times == len(errors) else f"for {times} of them, "
        return (
            f"{len(errors)} of {counted(len(samples), 'sample')} of step {step} {have} no reward: "
            f"{most}{ended(why)} {count} not count in training."
        )
