"""The policy's accuracy on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.types import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Means over held-out prompts. A prompt without any scored completion does not count."""

    pass1: float
    """Mean accuracy of a completion."""
    passk: float
    """Mean over prompts of the best of their k completions."""
    k: int
    response_length: float
    """Mean tokens of a completion."""
    truncated: float
    """Share of completions that reached the length limit, 0 to 1."""
    is_graded: bool = False
    """The reward function tells no `acc`, or not all of its values are 0 or 1.

    Their mean is a reward then, and no share is right: a graded reward may begin with 1 for all.
    """

    @classmethod
    def of(cls, samples: Sequence[Sample], k: int) -> Evaluation:
        """Evaluate samples with k neighbours for each prompt. At least one must have a score."""
        groups = [samples[start : start + k] for start in range(0, len(samples), k)]
        known = [[s.score.accuracy for s in group if s.score.ok] for group in groups]
        scored = [accuracies for accuracies in known if accuracies]
        return cls(
            pass1=float(np.mean([np.mean(accuracies) for accuracies in scored])),
            passk=float(np.mean([max(accuracies) for accuracies in scored])),
            k=k,
            response_length=float(np.mean([s.completion.length for s in samples])),
            truncated=float(np.mean([not s.completion.finished for s in samples])),
            is_graded=any(s.score.metrics.get("acc") not in (0, 1) for s in samples if s.score.ok),
        )

    def row(self) -> dict[str, float]:
        """Return the logged metrics. `accuracy` is another name of pass@1.

        A graded mean also has its right name.
        """
        graded = {"eval/reward": self.pass1} if self.is_graded else {}
        return graded | {
            "eval/accuracy": self.pass1,
            "eval/pass1": self.pass1,
            f"eval/pass{self.k}": self.passk,
            "eval/response_length": self.response_length,
            "eval/truncated": self.truncated,
        }
