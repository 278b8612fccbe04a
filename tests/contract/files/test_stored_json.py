"""Which values of a stored row are numbers."""

from __future__ import annotations

import math

from contract.files.stored_json import LARGEST, is_count, is_integer, is_number


def test_a_count_is_a_whole_number_from_0_and_an_integer_may_be_negative() -> None:
    values = [0, 3, LARGEST, -1, -LARGEST, LARGEST + 1, True, 1.0, 0.5, math.nan, math.inf, "1"]
    assert [one for one in values if is_count(one)] == [0, 3, LARGEST]
    assert [one for one in values if is_integer(one)] == [0, 3, LARGEST, -1, -LARGEST]
    assert [one for one in values if is_number(one)] == [0, 3, LARGEST, -1, -LARGEST, 1.0, 0.5]
    assert not is_count(True)
