"""The opponent of `bench.data_plane` computes what its padded samples are worth."""

from __future__ import annotations

import numpy as np

from bench.data_plane import estimated


def test_padding_and_prompts_are_worth_nothing() -> None:
    rewards = np.array([[0.0, 0.0, 1.0, 9.0]], dtype=np.float32)
    values = np.array([[7.0, 0.5, 0.25, 9.0]], dtype=np.float32)
    mask = np.array([[False, True, True, False]])
    advantages, returns = estimated(rewards, values, mask)
    assert advantages[0].tolist() == [0.0, 0.5, 0.75, 0.0]
    assert returns[0, 1:3].tolist() == [1.0, 1.0]
