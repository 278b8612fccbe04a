"""What an evaluation is called: a share that is right, or a graded reward."""

from __future__ import annotations

import numpy as np
import pytest

from env.types import Prompt, Score
from trainer.metrics.evaluation import Evaluation
from trainer.metrics.recorder import NoReward
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


def test_samples_without_a_reward_are_told_when_their_share_has_doubled() -> None:
    right, none = sample(Score.of(1.0)), sample(Score.failed("the reward is None"))
    told, of_step = NoReward(), [[right] * (8 - failed) + [none] * failed for failed in range(5)]
    assert told.sentence(1, of_step[0]) == ""
    assert told.sentence(2, of_step[2]) == (
        "2 of 8 samples of step 2 have no reward: the reward is None. "
        "They do not count in training."
    )
    assert told.sentence(3, of_step[3]) == ""
    assert told.sentence(4, of_step[4]).startswith("4 of 8 samples of step 4 have no reward")


@pytest.mark.parametrize(
    ("scores", "is_graded"),
    [
        ([Score.of(0.0, acc=0.0), Score.of(1.0, acc=1.0), Score.failed("it was down")], False),
        ([Score.of(1.0), Score.of(1.0)], True),
        ([Score.of(0.2, acc=0.5)], True),
        ([Score.of(0.3, acc=0.0), Score.of(0.7, acc=1.0)], False),
        ([Score.of(0.0), Score.of(0.3)], True),
        ([Score.of(1.0), Score.of(-1.0)], True),
    ],
)
def test_only_declared_scores_of_0_and_1_are_shares_of_right_answers(
    scores: list[Score], is_graded: bool
) -> None:
    row = Evaluation.of([sample(score) for score in scores], 1).row()
    assert ("eval/reward" in row) is is_graded
    assert row.get("eval/reward", row["eval/pass1"]) == row["eval/accuracy"]
