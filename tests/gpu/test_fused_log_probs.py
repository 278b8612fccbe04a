"""The fused log-probabilities on a real GPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


@pytest.mark.parametrize("entropy", [False, True])
def test_log_probabilities_and_gradients_are_those_of_all_logits(entropy: bool) -> None:
    pytest.importorskip("triton")
    from tests.support.log_prob_errors import errors

    found = errors((300, 151_936, 896), entropy=entropy, device="cuda")
    assert found.pop("log_probs") < 1e-5
    assert found.pop("entropy", 0.0) < 1e-4
    assert max(found.values()) < 1e-2, found
