"""Log-probabilities and entropies without whole logits, against those that have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from tests.oracles.agreement import given, same
from tests.oracles.ours import gradient, leaf
from tests.oracles.process import Peers
from trainer.models.log_probs import Projection, token_log_probs


@pytest.mark.parametrize("peer", ["openrlhf", "trl"])
@given(
    tokens=st.integers(1, 8),
    vocabulary=st.integers(2, 40),
    block_elements=st.sampled_from([1, 16, 10_000]),
    temperature=st.sampled_from([0.5, 1.0, 1.3]),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_log_probabilities_and_entropies_equal_the_peer_s(
    peers: Peers,
    peer: str,
    tokens: int,
    vocabulary: int,
    block_elements: int,
    temperature: float,
    scale: float,
    seed: int,
) -> None:
    """Their gradients go on to hidden states and head by the chain rule."""
    rng = np.random.default_rng(seed)
    states, weight = rng.normal(0, scale, (tokens, 4)), rng.normal(size=(vocabulary, 4))
    labels = rng.integers(0, vocabulary, tokens)
    shares = rng.normal(size=tokens), rng.normal(size=tokens)
    call: Any = getattr(peers, peer)
    theirs = call(
        "log_probs_and_entropy",
        logits=states @ weight.T,
        labels=labels,
        temperature=temperature,
        shares=shares,
    )
    hidden, head = leaf(states), leaf(weight)
    log_probs, entropy = token_log_probs(
        hidden,
        torch.tensor(labels),
        Projection(head),
        temperature,
        entropy=True,
        block_elements=block_elements,
    )
    assert entropy is not None
    (log_probs @ torch.tensor(shares[0]) + entropy @ torch.tensor(shares[1])).backward()
    same(log_probs.detach().numpy(), theirs["log_probs"])
    same(entropy.detach().numpy(), theirs["entropy"])
    same(gradient(hidden), theirs["gradient"] @ weight)
    same(gradient(head), theirs["gradient"].T @ states)
