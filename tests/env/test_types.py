"""Numbers of other programs as Python's finite ones, and as texts for messages."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from env.types import Score, brief, finite

HUGE = 10**400


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.5, 0.5),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 2), 0.5),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int8(1), 1.0),
        (np.array([0.5]), 0.5),
        (torch.tensor([0.5]), 0.5),
        (HUGE, None),
        (-HUGE, None),
        pytest.param(10**5000, None, id="5001 digits"),
        (Fraction(HUGE), None),
        (Decimal("1e400"), None),
        (Decimal("NaN"), None),
        (Decimal("sNaN"), None),
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32("inf"), None),
        (np.array([0.5, 1.0]), None),
        pytest.param(memoryview(b"ab"), None, id="a shape without item()"),
        (torch.tensor([0.5, 1.0]), None),
        (1j, None),
        ("1", None),
        (b"1", None),
        (None, None),
        ([1.0], None),
        ({"a": 1}, None),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_number_is_finite_or_none(value: Any, number: float | None) -> None:
    found = finite(value)
    assert found == number
    assert found is None or type(found) is float


def test_a_value_in_a_message_is_short() -> None:
    assert brief(10**5000) == "a int that is too long"
    assert len(brief("a" * 99)) == 60


@pytest.mark.parametrize(
    ("value", "kind"),
    [("abc", r"text \(str\)"), ("1.0", r"text \(str\)"), (None, "NoneType"), ([1.0], "list")],
)
def test_a_score_of_what_is_no_number_is_refused_where_it_is_made(value: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"the reward .* is a {kind}: give a number"):
        Score.of(value)
    with pytest.raises(TypeError, match=f"the metric length .* is a {kind}: give a number"):
        Score.of(1.0, length=value)


@pytest.mark.parametrize("value", [1, True, Fraction(1, 2), np.float32(1), torch.tensor([0.5])])
def test_numbers_of_other_packages_make_a_score(value: Any) -> None:
    assert Score.of(value, acc=value).plain().reward == float(value)
