"""What `bench.alternatives outputs` counts: outputs that vLLM builds, and bytes of its messages."""

from __future__ import annotations

import pytest

from bench.alternatives import outputs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_one_output_a_request_is_built_in_place_of_one_a_step() -> None:
    steps = [outputs.step_of(8, number) for number in (0, 1, outputs.STEPS - 1)]
    assert outputs.processed("DELTA", steps)[0] == 3 * 8
    assert outputs.processed("FINAL_ONLY", steps)[0] == 8
    assert outputs.sent(steps)[0] > 3 * 8 * 50
