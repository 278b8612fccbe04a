"""KL estimators and the controller of their weight against OpenRLHF's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.oracles.agreement import given, same
from tests.oracles.batches import Batch, batches
from tests.oracles.ours import gradient, leaf
from tests.oracles.process import Peers
from trainer.algorithms.kl import KLSums, kl
from trainer.config.options.algorithm import KLSettings


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@given(batch=batches())
def test_an_estimate_of_the_kl_equals_openrlhf_s(
    peers: Peers, batch: Batch, estimator: str
) -> None:
    options = {"kl_estimator": estimator}
    theirs = peers.openrlhf(
        "kl", log_probs=batch.log_probs, reference=batch.reference, options=options
    )
    now = leaf(batch.log_probs)
    estimate = kl(now, leaf(batch.reference).detach(), estimator)
    estimate.sum().backward()
    same(estimate.detach().numpy(), theirs["value"])
    same(gradient(now), theirs["gradient"])
    same(kl(batch.log_probs, batch.reference, estimator), theirs["value"])  # on the driver


@pytest.mark.parametrize("in_loss", [False, True])
@given(batch=batches(spread=3.0), estimator=st.sampled_from(["k1", "k2", "k3"]))
def test_the_kl_that_steers_equals_openrlhf_s(
    peers: Peers, batch: Batch, estimator: str, in_loss: bool
) -> None:
    theirs = peers.openrlhf(
        "kl_of_step",
        log_probs=batch.log_probs,
        reference=batch.reference,
        actions=batch.action_mask,
        options={"use_loss": in_loss, "estimator": estimator},
    )
    estimate = kl(batch.log_probs, batch.reference, estimator)
    counts = batch.action_mask.sum(axis=1)
    sums = KLSums.of(estimate[batch.action_mask], counts)
    same(sums.step_mean(counts, in_loss=in_loss), theirs)


@given(
    st.floats(0, 1),
    st.none() | st.floats(0.01, 10),
    st.integers(1, 20_000),
    st.lists(st.floats(-1, 100), max_size=8),
    st.integers(1, 512),
)
def test_the_kl_s_weight_moves_as_openrlhf_s(
    peers: Peers, initial: float, target: float | None, horizon: int, kls: list[float], samples: int
) -> None:
    theirs = peers.openrlhf(
        "kl_coefficients",
        initial=initial,
        target=target,
        horizon=horizon,
        kls=kls,
        samples=samples,
    )
    coefficient, ours = initial, []
    for value in kls:
        settings = KLSettings(target=target, horizon=horizon)
        coefficient = settings.next_coefficient(coefficient, value, samples)
        ours.append(coefficient)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
