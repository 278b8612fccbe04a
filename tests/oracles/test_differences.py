"""Where the peers differ from this trainer, or from each other: the table of `docs/algorithms.md`.

Each test shows what the other one does, so that a new release of it that changes is noticed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracles import advantage_calls, ours, policy_loss_calls
from tests.oracles.agreement import differs, same
from tests.oracles.batches import Array, Batch
from tests.oracles.process import Peers
from tests.support.objectives import policy_objective
from trainer.algorithms.objectives import PolicyObjective
from trainer.config.options.algorithm import CorrectionSettings, KLSettings


def batch(action_mask: list[list[int]], *, seed: int = 0, **arrays: Any) -> Batch:
    chosen = np.array(action_mask, dtype=np.bool_)
    rng = np.random.default_rng(seed)

    def normal() -> Array:
        return np.where(chosen, rng.normal(size=chosen.shape), 0)

    old = -np.abs(normal())
    known = Batch(
        group_size=len(action_mask),
        action_mask=chosen,
        log_probs=old + 0.1 * normal(),
        old=old,
        rollout=old + 0.1 * normal(),
        reference=old + 0.1 * normal(),
        entropy=np.abs(normal()),
        advantages=normal(),
        values=normal(),
        old_values=normal(),
        returns=normal(),
        rewards=rng.normal(size=len(action_mask)),
    )
    return replace(known, **arrays)


@pytest.mark.parametrize(("gamma", "lambd"), [(0.9, 1.0), (1.0, 0.9)])
def test_openrlhf_s_gae_steps_through_what_a_tool_said(
    peers: Peers, gamma: float, lambd: float
) -> None:
    """Its returns change with the length of an observation, though the policy chose the same."""
    short = batch([[1, 1, 0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    order = [0, 1, 2, 5, 6, 3, 4, 7]  # the same actions and values, three more words of the tool

    def longer(array: Array) -> Array:
        return np.stack([array[0, order], array[1]])

    long = batch(
        [[1, 1, 0, 0, 0, 1, 1, 0], [1] * 8],
        rewards=short.rewards,
        values=longer(short.values),
    )
    assert np.array_equal(short.values[short.action_mask], long.values[long.action_mask])
    settings = advantage_calls.estimator("gae", gamma=gamma, lambd=lambd, no_std_norm=True)

    def chosen(estimated: tuple[NDArray[Any], NDArray[Any]], of: Batch) -> NDArray[Any]:
        returns: NDArray[Any] = estimated[1][of.action_mask]
        return returns

    same(
        chosen(advantage_calls.ours(long, settings), long),
        chosen(advantage_calls.ours(short, settings), short),
    )
    theirs = [
        chosen(advantage_calls.of_openrlhf(peers, one, settings), one) for one in (short, long)
    ]
    assert differs(theirs[0], theirs[1])


def test_openrlhf_s_discount_counts_what_a_tool_said(peers: Peers) -> None:
    turns = batch([[1, 0, 0, 1], [1, 1, 1, 1]])
    settings = advantage_calls.estimator("reinforce", gamma=0.5)
    _, mine = advantage_calls.ours(turns, settings)
    _, theirs = advantage_calls.of_openrlhf(peers, turns, settings)
    same(mine[0, 0], 0.5 * turns.rewards[0])
    same(theirs[0, 0], 0.5**3 * turns.rewards[0])


@pytest.mark.parametrize("name", ["reinforce_baseline", "rloo", "group_norm", "dr_grpo"])
def test_openrlhf_discounts_only_with_gae_and_reinforce(peers: Peers, name: str) -> None:
    turns = batch([[1, 1, 1], [1, 1, 1]])
    settings = advantage_calls.estimator(name, gamma=0.5)
    _, mine = advantage_calls.ours(turns, settings)
    _, theirs = advantage_calls.of_openrlhf(peers, turns, settings)
    same(mine[:, 0], 0.25 * mine[:, -1])
    same(theirs[:, 0], theirs[:, -1])


def test_trl_s_group_deviation_has_a_larger_epsilon(peers: Peers) -> None:
    """1e-4 there, 1e-9 here and in OpenRLHF: it shows where rewards hardly differ."""
    rewards = np.array([0.0, 1.0, 0.5, 0.25])
    for scale, apart in ((1.0, False), (1e-4, True)):
        close = batch([[1]] * 4, rewards=scale * rewards)
        settings = advantage_calls.estimator("group_norm")
        mine, _ = advantage_calls.ours(close, settings)
        theirs = advantage_calls.of_trl(peers, close, "grpo", close.rewards, scale_rewards="group")
        deviation = close.rewards.std(ddof=1)
        same(theirs * (deviation + 1e-4), mine * (deviation + 1e-9))
        assert differs(mine, theirs) == apart


def test_openrlhf_s_kl_and_entropy_are_token_means_whatever_the_aggregation(peers: Peers) -> None:
    """So is TRL's entropy. Here both are aggregated as the policy's loss is, as TRL's KL is."""
    ragged = batch([[1, 1, 1, 1], [1, 0, 0, 0]])
    theirs = peers.openrlhf(
        "policy_step",
        log_probs=ragged.log_probs,
        entropy=ragged.entropy,
        arrays={
            "action_log_probs": ragged.old,
            "base_action_log_probs": ragged.reference,
            "advantages": 0 * ragged.advantages,
            "action_mask": ragged.action_mask,
        },
        settings={
            "policy_loss": {"token_level_loss": False},
            "entropy_coef": 1.0,
            "kl_coef": 0.0,
            "kl": {"use_loss": False},
        },
    )
    objective = policy_objective(entropy_loss_coef=1.0)
    mine = {
        aggregation: ours.policy_loss(
            ragged, objective, advantages=0 * ragged.advantages, aggregation=aggregation
        )
        for aggregation in ("token", "sequence")
    }
    same(mine["token"].entropy_gradient, theirs["entropy_gradient"])
    of_trl = policy_loss_calls.of_trl(
        peers, ragged, "grpo", entropy_coef=1.0, _entropy_bonus_enabled=True
    )
    same(mine["token"].entropy_gradient, of_trl["entropy_gradient"])
    assert differs(mine["sequence"].entropy_gradient, theirs["entropy_gradient"])


def test_trl_s_kl_is_not_clamped(peers: Peers) -> None:
    far = batch([[1]], log_probs=np.array([[-20.0]]), reference=np.array([[-1.0]]), group_size=1)
    mine = ours.policy_loss(far, policy_objective(kl=KLSettings(estimator="k3")), kl_coef=1.0)
    theirs = policy_loss_calls.of_trl(peers, far, "dapo", beta=1.0)
    same(mine.metrics["kl_loss"], 10.0)
    same(theirs["metrics"]["kl"], np.exp(19.0) - 19.0 - 1.0)


def test_trl_s_ratio_is_not_clamped(peers: Peers) -> None:
    """OpenRLHF and this trainer stop at e²⁰, where one token already outweighs any batch.

    OpenRLHF's GSPO does not; this one's does.
    """
    far = batch(
        [[1]],
        log_probs=np.array([[-1.0]]),
        old=np.array([[-25.0]]),
        advantages=np.array([[-1.0]]),
        group_size=1,
    )
    same(ours.policy_loss(far, PolicyObjective()).value, np.exp(20.0))
    same(policy_loss_calls.of_openrlhf(peers, far)["value"], np.exp(20.0))
    same(policy_loss_calls.of_trl(peers, far, "dapo")["value"], np.exp(24.0))
    same(ours.policy_loss(far, policy_objective(policy_loss_type="gspo")).value, np.exp(20.0))
    theirs = policy_loss_calls.of_openrlhf(peers, far, policy_loss_type="gspo")
    same(theirs["value"], np.exp(24.0))


def test_trl_s_sequence_ratio_to_the_engine_is_a_product(peers: Peers) -> None:
    """OpenRLHF's and this one's is the geometric mean, and only gates the tokens' own ratios."""
    long = batch([[1] * 4], old=np.full((1, 4), -1.0), rollout=np.full((1, 4), -1.2), group_size=1)
    factors = peers.trl(
        "scores",
        algorithm="grpo",
        rewards=long.rewards,
        action_mask=long.action_mask,
        log_probs=long.old,
        rollout_log_probs=long.rollout,
        options={
            "num_generations": 1,
            "scale_rewards": "none",
            "use_vllm": True,
            "vllm_importance_sampling_mode": "sequence_mask",
            "vllm_importance_sampling_clip_min": None,
            "vllm_importance_sampling_clip_max": 2.0,
        },
    )["factors"]
    same(factors, [[0.0]])  # e^(4 · 0.2) > 2: the whole sequence is dropped
    settings = CorrectionSettings(level="seq", threshold=(0.5, 2.0))
    mine = ours.policy_loss(long, policy_objective(correction=settings))
    assert mine.metrics["is_filter_ratio"] == 0
    theirs = policy_loss_calls.of_openrlhf(
        peers, long, is_correction_level="seq", is_correction_threshold=(0.5, 2.0)
    )
    assert theirs["metrics"]["is_filter_ratio"] == 0
    assert mine.value != 0


def test_openrlhf_counts_dropped_sequences_where_this_trainer_counts_tokens(peers: Peers) -> None:
    ragged = batch(
        [[1, 1, 1], [1, 0, 0]],
        old=np.array([[-1.0, -1.0, -1.0], [-1.0, 0, 0]]),
        rollout=np.array([[-1.0, -1.0, -1.0], [-9.0, 0, 0]]),
    )
    settings = CorrectionSettings(level="seq", threshold=(0.5, 2.0))
    mine = ours.policy_loss(ragged, policy_objective(correction=settings))
    theirs = policy_loss_calls.of_openrlhf(
        peers, ragged, is_correction_level="seq", is_correction_threshold=(0.5, 2.0)
    )
    same(mine.metrics["is_filter_ratio"], 1 / 4)
    same(theirs["metrics"]["is_filter_ratio"], 1 / 2)


def test_trl_divides_by_sequences_that_have_no_action(peers: Peers) -> None:
    """OpenRLHF and this trainer leave them out of the mean."""
    empty = batch([[1, 1], [0, 0]])
    outcome = {
        name: ours.policy_loss(
            empty,
            policy_loss_calls.objective(),
            advantages=policy_loss_calls.spread(empty),
            aggregation=name,
        )
        for name in ("sequence", "constant")
    }
    openrlhf = policy_loss_calls.of_openrlhf(peers, empty, token_level_loss=False)
    known = ours.policy_loss(empty, policy_loss_calls.objective(), aggregation="sequence")
    same(known.value, openrlhf["value"])
    for name, loss_type in (("sequence", "grpo"), ("constant", "dr_grpo")):
        theirs = policy_loss_calls.of_trl(peers, empty, loss_type)
        same(outcome[name].value, 2 * theirs["value"])
