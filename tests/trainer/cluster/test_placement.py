"""Joining Ray, where it does not start."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import ray

from trainer.cluster import placement
from trainer.config.layout import Layout
from trainer.types import TrainingError

LATE = "The current node timed out during startup. This could happen because the GCS is overloaded."


def test_a_busy_machine_on_which_ray_does_not_start_in_time_is_told_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**_: Any) -> NoReturn:
        raise Exception(LATE)  # as Ray does, after 30 s

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        TrainingError, match=r"Ray did not start .* load is \d+ on \d+ CPUs"
    ) as told:
        placement.join(Layout(()))
    assert LATE in str(told.value)


def test_another_error_of_ray_s_start_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> NoReturn:
        raise ValueError("no such option")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match="no such option"):
        placement.join(Layout(()))
