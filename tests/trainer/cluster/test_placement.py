"""Joining Ray, where it does not start."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import pytest
import ray

from trainer.cluster import placement
from trainer.config.layout import Layout
from trainer.types import TrainingError

LATE = "The current node timed out during startup. This could happen because the GCS is overloaded."


def test_a_busy_machine_on_which_ray_does_not_start_in_time_is_told_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    again = re.compile(r"starting it again \(The current node timed out .* Load \d+ on \d+ CPUs\)$")
    lines = capsys.readouterr().err.splitlines()
    assert [again.search(line) is not None for line in lines] == [True] * (placement.STARTS - 1)


def test_another_error_of_ray_s_start_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([ValueError("no such option"), Exception("its packages are missing.")])

    def init(**_: Any) -> NoReturn:
        raise next(said)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    for told, words in ((ValueError, "no such option"), (TrainingError, "packages are missing")):
        with pytest.raises(told, match=words):
            placement.join(Layout(()))
