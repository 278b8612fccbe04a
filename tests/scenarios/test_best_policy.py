"""Which policy of a run is kept as the best one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from env.types import RewardRequest, Score
from tests.support.tiny_run import Tiny, train


def test_an_accuracy_that_is_no_number_does_not_replace_the_best_one(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, eval_steps=1, max_steps=2)
    held_out = {str(n) for n in range(25, 29)}
    evaluations: Counter[str] = Counter()

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        scores = []
        for request in requests:
            evaluations[request.prompt] += 1
            is_last = request.label in held_out and evaluations[request.prompt] == 3
            scores.append(Score.of(0.5, acc=float("nan") if is_last else 0.5))
        return scores

    state = train(config, reward)
    assert state.best == 0.5
    assert [path.name for path in config.files.best.iterdir()] == ["global_step_1"]
