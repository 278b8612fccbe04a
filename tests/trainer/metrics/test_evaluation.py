"""What an evaluation is called: a share that is right, or a graded reward."""

from __future__ import annotations

import numpy as np
import pytest

from env.types import Prompt, Score
from trainer.metrics.evaluation import Evaluation
from trainer.types import Completion, Sample


def sample(score: Score) -> Sample:
    tokens = np.zeros(2, np.int32)
    completion = Completion(
        text="x",
        tokens=tokens,
        action_mask=np.array([False, True]),
        log_probs=np.zeros(2, np.float32),
        finished=True,
        versions=np.zeros(2, np.int32),
    )
    return Sample(Prompt(0, "?"), completion, score)


@pytest.mark.parametrize(
    ("scores", "is_graded"),
    [
        ([Score.of(0.0), Score.of(1.0), Score.failed("it was down")], False),
        ([Score.of(0.3, acc=0.0), Score.of(0.7, acc=1.0)], False),
        ([Score.of(0.0), Score.of(0.3)], True),
        ([Score.of(1.0), Score.of(-1.0)], True),
    ],
)
def test_only_scores_of_0_and_1_are_shares_of_right_answers(
    scores: list[Score], is_graded: bool
) -> None:
    row = Evaluation.of([sample(score) for score in scores], 1).row()
    assert ("eval/reward" in row) is is_graded
    assert row.get("eval/reward", row["eval/pass1"]) == row["eval/accuracy"]
