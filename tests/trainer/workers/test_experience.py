"""The samples of a step between driver and ranks: who gets what, and that nothing is lost."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.support.simulated_ranks import SimulatedGroup, Store, config_of, workers_of
from trainer.algorithms import advantages
from trainer.algorithms.advantages import Rewards
from trainer.types import Completion, FloatArray
from trainer.workers import experience
from trainer.workers.experience import Lesson
from trainer.workers.groups import WorkerGroups
from trainer.workers.protocols import Critic, Policy

ROLES = ("policy", "critic", "reference")


def completions(samples: int, limit: int) -> list[Completion]:
    random = np.random.default_rng(0)
    return [
        Completion(
            text="",
            tokens=random.integers(0, 50, length),
            action_mask=random.random(length) < 0.8,
            log_probs=np.full(length, -1, dtype=np.float32),
            finished=True,
            versions=np.zeros(length, dtype=np.int64),
            turn_rewards={length - 1: 0.25} if length % 2 else {},
        )
        for length in random.integers(2, limit, samples).tolist()
    ]


def taught(workers: WorkerGroups, given: list[Completion], **settings: int) -> Lesson:
    """A step, of which one reward is unknown."""
    config = config_of(len(given), **settings)
    rewards = np.random.default_rng(1).normal(size=len(given)).astype(np.float32)
    rewards[1] = np.nan
    divided = experience.divide(workers, given, config, 1)
    forward = experience.start_forward(workers, divided, config)
    actions = forward.division.plan.actions
    scores = advantages.above_baseline(
        config.advantage, Rewards(whole=rewards), actions, config.n_samples_per_prompt
    )
    lesson = experience.make_lesson(workers, forward, scores, config, 0.1)
    assert workers.critic
    workers.critic.call_ranks(Critic.update, *lesson.arguments(workers.critic), 1)
    workers.policy.call_ranks(Policy.update, *lesson.arguments(workers.policy), 1)
    return lesson


def learned(group: Any, sharing: int = 1) -> list[tuple[FloatArray, ...]]:
    """Of each sample, in order: tokens, advantages, returns, and what each model said."""
    found = {}
    models = group.models[::sharing]
    for model in models:
        ((rows, of),) = model.learned
        for place, row in enumerate(rows.tolist()):
            one = of.rows(np.array([place]))
            arrays = one.advantages, one.returns, one.old_log_probs, one.ref_log_probs, one.values
            found[row] = (one.sequences.tokens, *arrays)
    assert sum(len(model.learned[0][0]) for model in models) == len(found)
    return [found[row] for row in sorted(found)]


@pytest.mark.parametrize(
    ("ranks", "sharing"),
    [((4, 4, 4), 1), ((4, 2, 1), 1), ((1, 3, 2), 1), ((6, 4, 4), 1), ((4, 2, 2), 2)],
)
def test_models_of_any_numbers_of_ranks_learn_what_one_rank_of_each_does(
    ranks: tuple[int, int, int], sharing: int
) -> None:
    given = completions(24, 30)
    alone = workers_of(dict.fromkeys(ROLES, 1), Store())
    together = workers_of(dict(zip(ROLES, ranks, strict=True)), Store())
    expected = taught(alone, given, updates=3, epochs=2, group=4)
    lesson = taught(together, given, updates=3, epochs=2, group=4, sharing=sharing)
    for group, one in ((together.policy, alone.policy), (together.critic, alone.critic)):
        for mine, theirs in zip(learned(group, sharing), learned(one), strict=True):
            for array, other in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(array, other, atol=1e-6)
    for name in ("mean", "squares", "count"):
        mine, theirs = (getattr(of.statistics.advantages, name) for of in (lesson, expected))
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    assert lesson.statistics.returns == pytest.approx(expected.statistics.returns)
    assert lesson.statistics.kl == pytest.approx(expected.statistics.kl)


def test_a_rank_receives_its_share_and_the_driver_no_token() -> None:
    given, store, count = completions(256, 2_000), Store(), 8
    workers = workers_of(dict.fromkeys(ROLES, count), store)
    taught(workers, given)
    tokens = sum(len(one.tokens) for one in given)
    actions = sum(one.length for one in given)
    plan = 5 * 8 * len(given)
    # A part has the tokens, their mask, the engine's numbers and rewards of turns.
    part, outputs = (5 * tokens + 8 * actions) / count, 3 * 4 * actions / count
    for group, calls, computed in ((workers.policy, 3, 2), (workers.critic, 2, 1)):
        traffic = cast(SimulatedGroup, group).traffic
        most = calls * (1.02 * part + 2 * plan + 10_000) + computed * 1.02 * outputs
        assert max(traffic.received) < most
        assert traffic.returned < 1_000 * count
    reference = cast(SimulatedGroup, workers.reference).traffic
    assert max(reference.received) < 1.02 * part + 2 * plan + 10_000
    assert reference.returned == 0
