from __future__ import annotations

import pytest

from contract.launch.busy import sentence


@pytest.mark.parametrize(
    ("load", "cpus", "said"),
    [(42.4, 2, "this machine is busy (load 42 on 2 CPUs)"), (3.9, 2, ""), (20.0, 16, "")],
)
def test_a_machine_is_busy_by_its_load_for_each_cpu(load: float, cpus: int, said: str) -> None:
    assert sentence(load, cpus) == said
