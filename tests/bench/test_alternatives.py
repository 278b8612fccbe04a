"""The counts of `bench.alternatives`, which no load of the machine changes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.alternatives import __main__ as alternatives
from bench.alternatives import passes, rounds, slices


def test_the_fullest_passes_are_as_few_as_a_budget_allows() -> None:
    row = passes.measured()
    assert row.ours == row.detail["fewest"] == 756
    assert row.alternative == 899
    assert row.detail["passes"]["in_order"] > row.detail["passes"]["first_fit"] > row.ours


def test_the_plain_groupings_have_each_sample_once_and_keep_the_budget() -> None:
    lengths = np.array([6, 7, 3, 2, 4])
    assert passes.in_order(lengths, 10) == [[0], [1, 2], [3, 4]]
    assert passes.first_fit(lengths, 10) == [[0, 2], [1, 3], [4]]


def test_a_row_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.alternatives", "flood"])
    with pytest.raises(SystemExit) as ended:
        alternatives.main()
    assert ended.value.code == 2
    assert "no row flood: there are passes, outputs" in capsys.readouterr().err


def test_an_update_takes_rounds_a_bucket_only_one_by_one() -> None:
    counts = rounds.rounds()
    assert counts["ipc"] < 10
    assert counts["one_by_one"] == 2 * rounds.BUCKETS + 5


def test_an_engine_idles_between_the_end_of_a_slice_and_the_next_ones_beginning() -> None:
    assert slices.idle_share([(1.0, 2.0), (2.5, 4.0), (4.0, 5.0)]) == pytest.approx(0.5 / 4)
