"""Advantages and returns against OpenRLHF's RemoteExperienceMaker, TRL's GRPO and RLOO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.oracles.advantage_calls import estimator, of_openrlhf, of_trl, ours
from tests.oracles.agreement import given, same
from tests.oracles.batches import Array, Batch, batches
from tests.oracles.process import Peers
from tests.support import padded_advantages
from tests.support.padded_advantages import PaddedInputs
from trainer.algorithms.reward_shaping import LengthPenalties
from trainer.config.options.algorithm import ShapingSettings
from trainer.types import FloatArray

ESTIMATORS = [
    "gae",
    "reinforce",
    "reinforce_baseline",
    "rloo",
    "group_norm",
    "dr_grpo",
    "flash_reinforce",
]
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.97, 1.0])


@pytest.mark.parametrize("name", ESTIMATORS)
@given(batch=batches(), kl_coef=st.sampled_from([0.0, 0.1]), estimate=st.sampled_from("123"))
def test_an_estimator_s_advantages_equal_openrlhf_s(
    peers: Peers, name: str, batch: Batch, kl_coef: float, estimate: str
) -> None:
    settings = estimator(name, kl_coef=kl_coef, kl_estimator=f"k{estimate}")
    for mine, theirs in zip(
        ours(batch, settings), of_openrlhf(peers, batch, settings), strict=True
    ):
        same(mine, theirs)


@given(batches(gaps=False), DISCOUNTS, DISCOUNTS)
def test_gae_of_one_turn_equals_openrlhf_s(
    peers: Peers, batch: Batch, gamma: float, lambd: float
) -> None:
    settings = estimator("gae", gamma=gamma, lambd=lambd, kl_coef=0.1)
    for mine, theirs in zip(
        ours(batch, settings), of_openrlhf(peers, batch, settings), strict=True
    ):
        same(mine, theirs)


@given(batches(gaps=False), DISCOUNTS)
def test_discounted_returns_of_one_turn_equal_openrlhf_s(
    peers: Peers, batch: Batch, gamma: float
) -> None:
    settings = estimator("reinforce", gamma=gamma, kl_coef=0.1)
    for mine, theirs in zip(
        ours(batch, settings), of_openrlhf(peers, batch, settings), strict=True
    ):
        same(mine, theirs)


@pytest.mark.parametrize("name", ["gae", "reinforce", "reinforce_baseline"])
@given(batch=batches())
def test_advantages_centred_without_their_deviation_equal_openrlhf_s(
    peers: Peers, name: str, batch: Batch
) -> None:
    settings = estimator(name, no_std_norm=True)
    same(ours(batch, settings)[0], of_openrlhf(peers, batch, settings)[0])


@given(batches(), st.sampled_from(ESTIMATORS), st.integers(0, 2**32 - 1))
def test_it_does_not_matter_how_openrlhf_cuts_the_rollouts(
    peers: Peers, batch: Batch, name: str, seed: int
) -> None:
    """Its micro-batches hold rows in any order; groups and whitening are of all of them."""
    order = np.random.default_rng(seed).permutation(len(batch.action_mask))
    settings = estimator(name)
    theirs = of_openrlhf(peers, batch, settings, [order[:1], order[1:]])
    same(ours(batch, settings)[0], theirs[0])


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 16), st.booleans()), min_size=1),
    st.none() | st.sampled_from([1, 4, 16]),
    st.sampled_from([0.5, 1.0]),
    st.none() | st.sampled_from([-0.5, 0.0, 0.3, 1.0]),
)
def test_length_penalties_equal_openrlhf_s(
    peers: Peers,
    samples: list[tuple[float, int, bool]],
    buffer: int | None,
    factor: float,
    coefficient: float | None,
) -> None:
    rewards, lengths, finished = (np.array(column) for column in zip(*samples, strict=True))
    theirs = peers.openrlhf(
        "penalised",
        rewards=rewards,
        lengths=lengths,
        truncated=~finished,
        options={
            "max_new_tokens": 16,
            "overlong_buffer_len": buffer,
            "overlong_penalty_factor": factor,
            "stop_properly_penalty_coef": coefficient,
        },
    )
    settings = ShapingSettings(
        overlong_buffer_len=buffer,
        overlong_penalty_factor=factor,
        stop_properly_penalty_coef=coefficient,
    )
    penalties = LengthPenalties(16, settings)
    same(penalties.apply(rewards, lengths, finished), theirs)


def some_unknown(batch: Batch, seed: int) -> tuple[Array, Batch]:
    """Rewards of which some are NaN, and the batch with no action in those rows."""
    unknown = np.random.default_rng(seed).random(len(batch.rewards)) < 0.3
    action_mask = batch.action_mask & ~unknown[:, None]
    return np.where(unknown, np.nan, batch.rewards), replace(batch, action_mask=action_mask)


@pytest.mark.parametrize(
    ("name", "algorithm", "options"),
    [
        ("dr_grpo", "grpo", {"scale_rewards": "none"}),
        ("rloo", "rloo", {}),
    ],
)
@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_a_baseline_over_the_known_rewards_equals_trl_s(
    peers: Peers, name: str, algorithm: str, options: dict[str, Any], batch: Batch, seed: int
) -> None:
    rewards, known = some_unknown(batch, seed)
    settings = estimator(name, reward_clip_range=(-1000.0, 1000.0))
    mine, _ = padded_advantages.estimate(
        settings.settings,
        PaddedInputs(rewards=rewards, action_mask=known.action_mask, group_size=batch.group_size),
    )
    same(mine, of_trl(peers, known, algorithm, rewards, **options))


@given(batch=batches())
def test_opo_equals_verl_s(peers: Peers, batch: Batch) -> None:
    mine, _ = ours(batch, estimator("opo", reward_clip_range=(-1000.0, 1000.0)))
    theirs = peers.verl(
        "advantages",
        estimator="opo",
        rewards=batch.rewards,
        action_mask=batch.action_mask,
        groups=np.arange(len(batch.rewards)) // batch.group_size,
    )
    same(mine, theirs)


@given(batch=batches(), n=st.integers(0, 2**32 - 1))
def test_remax_equals_verl_s(peers: Peers, batch: Batch, n: int) -> None:
    prompts = len(batch.rewards) // batch.group_size
    greedy = np.random.default_rng(n).normal(size=prompts).repeat(batch.group_size)
    settings = estimator("remax", reward_clip_range=(-1000.0, 1000.0))
    mine, _ = padded_advantages.estimate(
        settings.settings,
        PaddedInputs(
            rewards=batch.rewards,
            action_mask=batch.action_mask,
            group_size=batch.group_size,
            greedy=greedy,
        ),
    )
    theirs = peers.verl(
        "advantages",
        estimator="remax",
        rewards=batch.rewards,
        action_mask=batch.action_mask,
        groups=np.arange(len(batch.rewards)) // batch.group_size,
        reward_baselines=greedy,
    )
    same(mine, theirs * batch.action_mask)


WEIGHTS = (1.0, 0.5, 2.0)


def of_each_reward(batch: Batch, seed: int) -> Array:
    """[K, B] rewards of three functions: numbers, right or wrong, and the batch's own."""
    rng = np.random.default_rng(seed)
    size = len(batch.rewards)
    return np.stack([rng.normal(0, 20, size), rng.integers(0, 2, size), batch.rewards])


def gdpo(batch: Batch, parts: Array, weights: tuple[float, ...]) -> FloatArray:
    """Advantages of completions whose actions are one token each."""
    settings = estimator("gdpo", reward_clip_range=(-1000.0, 1000.0))
    mine, _ = padded_advantages.estimate(
        settings.settings,
        PaddedInputs(
            rewards=np.array(weights) @ parts,
            action_mask=np.ones((len(batch.rewards), 1), dtype=np.bool_),
            group_size=batch.group_size,
            parts=parts,
            weights=weights,
        ),
    )
    return mine


@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_gdpo_of_one_token_each_equals_verl_s(peers: Peers, batch: Batch, seed: int) -> None:
    """verl's moments of the batch are of tokens, so here a completion has one."""
    parts = of_each_reward(batch, seed)
    names = [f"reward_{place}" for place in range(len(parts))]
    ones = np.ones((len(batch.rewards), 1))
    theirs = peers.verl(
        "advantages",
        estimator="gdpo",
        rewards=batch.rewards,
        action_mask=ones.astype(np.bool_),
        groups=np.arange(len(batch.rewards)) // batch.group_size,
        options={
            "epsilon": 1e-9,
            "config": {"gdpo_reward_keys": names, "gdpo_reward_weights": WEIGHTS},
            "non_tensor_batch": dict(zip(names, parts, strict=True)),
        },
        batch={"prompts": ones, "attention_mask": np.ones((len(ones), 2), dtype=np.int64)},
    )
    same(gdpo(batch, parts, WEIGHTS), theirs)


LARGE = 1e5
"""Beside rewards and weights of this size, TRL's 1e-4 is our 1e-9."""


@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_gdpo_equals_trl_s(peers: Peers, batch: Batch, seed: int) -> None:
    parts = LARGE * of_each_reward(batch, seed)
    weights = tuple(LARGE * weight for weight in WEIGHTS)
    rows = replace(batch, action_mask=np.ones((len(batch.rewards), 1), dtype=np.bool_))
    options = {
        "multi_objective_aggregation": "normalize_then_sum",
        "reward_funcs": WEIGHTS,
        "reward_func_names": WEIGHTS,
        "reward_weights": np.array(weights),
    }
    same(gdpo(batch, parts, weights), of_trl(peers, rows, "grpo", parts.T, **options))
