"""Which policy of a run is kept as the best one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from contract.journal import read_events
from env.types import RewardRequest, Score
from tests.support.tiny_run import Tiny, train


def test_another_metric_begins_anew(tiny: Tiny, run_dir: Path) -> None:
    flags = {"eval_dataset": tiny.held_out, "eval_steps": 1, "save_steps": 1}

    def lower_each_time(requests: Sequence[RewardRequest]) -> list[Score]:
        return [Score.of(0.9 if len(requests) == 4 else 0.1) for _ in requests]

    state = train(tiny.config(run_dir, max_steps=1, **flags), lower_each_time)
    assert state.best == 0.9
    config = tiny.config(
        run_dir,
        max_steps=2,
        eval_n_samples_per_prompt=2,
        eval_temperature=1,
        best_metric_key="pass2",
        **flags,
    )
    assert train(config, lower_each_time).best == 0.1
    assert [path.name for path in config.files.best.iterdir()] == ["global_step_2"]


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


def test_if_the_model_before_training_is_best_the_journal_says_so(
    tiny: Tiny, run_dir: Path
) -> None:
    config = tiny.config(run_dir, eval_dataset=tiny.held_out, eval_steps=1, max_steps=2)
    held_out = {str(n) for n in range(25, 29)}
    values, seen = (0.9, 0.1, 0.3), Counter[str]()

    def reward(requests: Sequence[RewardRequest]) -> list[Score]:
        scores = []
        for request in requests:
            seen[request.prompt] += 1
            time = seen[request.prompt] - 1
            scores.append(Score.of(values[time] if request.label in held_out else 0.5))
        return scores

    train(config, reward)
    told = [event["sentence"] for event in read_events(config.files.journal)]
    assert [one for one in told if "best" in one] == [
        "The model before training is the best so far: eval/reward 0.900. After a step, that of "
        f"step {step} is the best: {value:.3f}."
        for step, value in ((1, 0.1), (2, 0.3))
    ]
