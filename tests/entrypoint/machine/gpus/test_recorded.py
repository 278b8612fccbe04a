"""Recorded answers of NVML: the recorder writes what the records of the tests are made of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import machines
from tests.support.record_nvml import record
from tests.support.repository import DATA


def recorded(state: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "nvml" / f"{state}.json").read_text())
    return found


@pytest.mark.parametrize("state", ["h100-good", "h100-bad", "a100-good", "a100-bad"])
def test_a_record_of_a_record_has_the_same_answers(state: str) -> None:
    made, told = record(machines.nvml(state)), recorded(state)
    assert made["system"] == told["system"]
    assert made["count"] == told["count"]
    again = machines.RecordedNvml(json.loads(json.dumps(made)))
    assert record(again) == made
    for call, answer in made["device"].items():
        if call not in told["devices"].get("0", {}):
            assert answer == told["device"].get(call, {"error": 3}), call
