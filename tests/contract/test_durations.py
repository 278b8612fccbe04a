from __future__ import annotations

import pytest

from contract.durations import duration, significant


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.02, "0 s"),
        (4.24, "4.2 s"),
        (9, "9 s"),
        (59.99, "60 s"),
        (200, "3 min 20 s"),
        (3599.9, "1 h 0 min"),
        (18_600, "5 h 10 min"),
        (187_200, "2 d 4 h"),
        (2_592_000, "30 d 0 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.15625, "0.1563"), (-0.15625, "-0.1563"), (0.12344, "0.1234"), (-6.9e-18, "0")],
)
def test_a_half_of_the_last_digit_goes_up_as_on_the_page(value: float, said: str) -> None:
    assert significant(value) == said
