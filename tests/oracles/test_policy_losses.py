"""CISPO, SAPO and GMPO, their gradients and corrections, against verl's and TRL's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.oracles import ours
from tests.oracles.agreement import given, same
from tests.oracles.batches import Batch, batches, wide_batches
from tests.oracles.policy_loss_calls import HIGH, LOW, of_trl, spread
from tests.oracles.process import Peers
from tests.support.objectives import policy_objective
from trainer.config.options.algorithm import CorrectionSettings

ANY = batches() | wide_batches()
MODES = {"gspo": "gspo", "cispo": "cispo", "sapo": "sapo", "gmpo": "geo_mean"}
"""Our name → verl's."""
AGGREGATIONS = {
    "token": "token-mean",
    "sequence": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}


def of_verl(peers: Peers, batch: Batch, mode: str, **settings: Any) -> dict[str, Any]:
    """verl's loss of completions whose tokens have one advantage, as its estimators give it."""
    weights = settings.pop("weights", None)
    theirs: dict[str, Any] = peers.verl(
        "policy_loss",
        mode=mode,
        log_probs=batch.log_probs,
        arrays={
            "old_log_prob": batch.old,
            "advantages": spread(batch),
            "response_mask": batch.action_mask.astype(np.float64),
        }
        | ({} if weights is None else {"rollout_is_weights": weights}),
        settings={"clip_ratio_low": LOW, "clip_ratio_high": HIGH, "tau_pos": 1.0, "tau_neg": 1.05}
        | settings,
    )
    return theirs


def loss_of(batch: Batch, name: str, aggregation: str, **settings: Any) -> ours.Outcome:
    return ours.policy_loss(
        batch,
        policy_objective(**{"policy_loss_type": name, "eps_clip_low_high": (LOW, HIGH)} | settings),
        advantages=spread(batch),
        aggregation=aggregation,
    )


def agree(outcome: ours.Outcome, theirs: dict[str, Any]) -> None:
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(batch=ANY)
def test_cispo_equals_verl_s(peers: Peers, batch: Batch, aggregation: str) -> None:
    global_batch = {"loss_scale_factor": ours.LONGEST} if aggregation == "constant" else {}
    theirs = of_verl(
        peers,
        batch,
        "cispo",
        loss_agg_mode=AGGREGATIONS[aggregation],
        global_batch_info=global_batch,
    )
    outcome = loss_of(batch, "cispo", aggregation)
    agree(outcome, theirs)
    same(outcome.metrics["ppo_clip_ratio"], theirs["clipped"])


@given(batch=batches(spread=3.0) | wide_batches())
def test_cispo_without_a_bound_below_equals_trl_s(peers: Peers, batch: Batch) -> None:
    """TRL's `epsilon_high` is the bound itself; --eps_clip_low_high 1 HIGH has none below."""
    theirs = of_trl(peers, batch, "cispo", epsilon_high=1 + HIGH)
    outcome = loss_of(batch, "cispo", "token", eps_clip_low_high=(1.0, HIGH))
    agree(outcome, theirs)


@given(batch=ANY)
def test_sapo_equals_verl_s(peers: Peers, batch: Batch) -> None:
    agree(loss_of(batch, "sapo", "sequence"), of_verl(peers, batch, "sapo"))


@given(batch=batches(spread=3.0) | wide_batches())
def test_sapo_s_temperatures_equal_trl_s(peers: Peers, batch: Batch) -> None:
    temperatures = {"sapo_temperature_pos": 0.5, "sapo_temperature_neg": 3.0}
    theirs = of_trl(peers, batch, "sapo", args=temperatures)
    agree(loss_of(batch, "sapo", "sequence", **temperatures), theirs)


@given(batch=batches(spread=3.0) | wide_batches())
def test_gmpo_equals_verl_s(peers: Peers, batch: Batch) -> None:
    agree(loss_of(batch, "gmpo", "sequence"), of_verl(peers, batch, "geo_mean"))


@given(batch=batches(spread=3.0) | wide_batches())
def test_gspo_equals_verl_s(peers: Peers, batch: Batch) -> None:
    theirs = of_verl(peers, batch, "gspo", loss_agg_mode="seq-mean-token-mean")
    agree(loss_of(batch, "gspo", "sequence"), theirs)


@pytest.mark.parametrize("name", ["cispo", "sapo", "gmpo"])
@pytest.mark.parametrize("mode", ["mask", "clip"])
@given(batch=batches(spread=3.0) | wide_batches())
def test_the_correction_for_the_engine_equals_verl_s(
    peers: Peers, batch: Batch, name: str, mode: str
) -> None:
    low, high = 0.5, 2.0
    ratio = np.exp(batch.old - batch.rollout)
    inside = (ratio >= low) & (ratio <= high)
    weights = np.where(inside, ratio, 0) if mode == "mask" else ratio.clip(low, high)
    theirs = of_verl(
        peers, batch, MODES[name], weights=weights, loss_agg_mode="seq-mean-token-mean"
    )
    correction = CorrectionSettings(level="token", mode=mode, threshold=(low, high))
    agree(loss_of(batch, name, "sequence", correction=correction), theirs)
