"""Drawing tokens: from which distribution, and with which random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.hf_engine import sampling
from trainer.rollout.hf_engine.sampling import draw, nucleus, uniforms

DRAWS = 20_000


def shares(logits: list[float], sampling: SamplingSettings) -> np.ndarray:
    """How often each token is drawn."""
    numbers = uniforms(np.full(DRAWS, 12345, dtype=np.uint64), np.arange(DRAWS))
    tokens, _ = draw(torch.tensor([logits] * DRAWS), torch.from_numpy(numbers), sampling)
    return np.bincount(tokens.numpy(), minlength=len(logits)) / DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_tempered_softmax_says(temperature: float) -> None:
    logits = [0.3, -1.0, 2.0, 0.0, -30.0]
    expected = (torch.tensor(logits) / temperature).softmax(-1).numpy()
    got = shares(logits, SamplingSettings(max_new_tokens=1, temperature=temperature))
    assert np.abs(got - expected).max() < 4 * np.sqrt(0.25 / DRAWS)


def test_nucleus_sampling_draws_from_the_likeliest_that_reach_top_p() -> None:
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    got = shares(logits.tolist(), SamplingSettings(max_new_tokens=1, top_p=0.65))
    assert np.abs(got - np.array([0, 4 / 7, 0, 3 / 7])).max() < 4 * np.sqrt(0.25 / DRAWS)


@given(
    masses=st.lists(st.floats(0.01, 1), min_size=1, max_size=8),
    top_p=st.floats(0.01, 1),
)
def test_the_nucleus_is_the_shortest_beginning_that_reaches_top_p(
    masses: list[float], top_p: float
) -> None:
    ordered = torch.tensor(sorted(masses, reverse=True), dtype=torch.float64)
    ordered /= ordered.sum()
    kept = int((nucleus(ordered[None], top_p)[0] > 0).sum())
    assert kept >= 1
    assert ordered[:kept].sum() >= top_p - 1e-9
    assert ordered[: kept - 1].sum() < top_p


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2.0**-53])
def test_a_token_without_probability_is_never_drawn(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    drawn = draw(
        logits, torch.tensor([number], dtype=torch.float64), SamplingSettings(max_new_tokens=1)
    )
    assert int(drawn[0]) in (1, 3)


def test_numbers_are_uniform_and_independent_along_and_across_streams() -> None:
    seeds = np.arange(400, dtype=np.uint64)  # neighbours: the worst that a caller could do
    numbers = np.stack([uniforms(seeds, np.full(400, position)) for position in range(50)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    expected = numbers.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # χ² with 19 degrees: p = 0.001
    across, along = np.corrcoef(numbers.T), np.corrcoef(numbers)
    for correlations, length in ((across, 50), (along, 400)):
        off_diagonal = correlations[~np.eye(len(correlations), dtype=bool)]
        assert abs(off_diagonal.mean()) < 0.02
        assert abs(off_diagonal.std() - length**-0.5) < 0.2 * length**-0.5


def test_a_number_that_rounds_to_the_whole_mass_draws_the_last_token_with_any() -> None:
    probabilities = torch.tensor([[0.25, 0.25, 0.0]])
    assert sampling._invert(probabilities, torch.tensor([1 - 2**-53]).double()).tolist() == [1]
