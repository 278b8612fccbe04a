"""The state of several ranks: what a snapshot sends, and how it is read at another layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.benches import Benches
from tests.support.ranks import ADAPTERS, Workbench, saved_in, settings, taught
from trainer.checkpoint.state import State
from trainer.config.options.parallelism import Sharding
from trainer.workers.settings import LearnerSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("stage", "adam_offload"),
    [
        *((2, False), (3, False)),
        *(
            pytest.param(*case, marks=pytest.mark.faults)
            for case in ((1, False), (1, True), (2, True), (3, True))
        ),
    ],
)
def test_a_snapshot_sends_nothing_between_ranks(
    benches: Benches, model: Path, stage: int, adam_offload: bool
) -> None:
    made = settings(model, Sharding(zero_stage=stage, adam_offload=adam_offload))
    benches[2].call_ranks(Workbench.build, "policy", made).result()
    benches[2].call_ranks(Workbench.lesson, [1]).result()
    assert benches[2].call_ranks(Workbench.sent_in_a_snapshot).result() == [0, 0]


MOVES = [(2, 1), (4, 2), (1, 0), (2, 3), (2, 0), (4, 1), (1, 3), (4, 3), (1, 2), (4, 0)]
"""Number of ranks, and ZeRO's stage."""


@pytest.mark.parametrize(
    ("role", "changes"),
    [
        pytest.param("policy", {}, id="plain-policy"),
        pytest.param("critic", {}, id="plain-critic", marks=pytest.mark.faults),
        pytest.param("policy", {"lora": ADAPTERS}, id="adapters", marks=pytest.mark.faults),
        pytest.param("critic", {"mixed_precision": True}, id="bf16", marks=pytest.mark.faults),
        pytest.param("policy", {"adam_offload": True}, id="offload", marks=pytest.mark.faults),
        pytest.param("policy", {"zpg": 2}, id="groups"),
    ],
)
def test_a_state_is_the_same_to_the_bit_at_any_number_of_ranks_and_any_stage(
    benches: Benches, model: Path, tmp_path: Path, role: str, changes: dict[str, Any]
) -> None:
    more = {key: changes[key] for key in changes if key not in ("adam_offload", "zpg")}
    offload, zpg = changes.get("adam_offload", False), changes.get("zpg", 1)

    def made(count: int, stage: int) -> LearnerSettings:
        sharding = Sharding(
            zero_stage=stage,
            adam_offload=offload and stage > 0,
            zpg=zpg if count > zpg and stage == 3 else 1,
        )
        return settings(model, sharding, **more)

    _, expected = taught(benches[4], role, tmp_path / "0", made(4, 3))
    for number, (count, stage) in enumerate(MOVES, 1):
        bench, directory = benches[count], tmp_path / str(number)
        bench.call_ranks(Workbench.build, role, made(count, stage)).result()
        bench.call_ranks(Workbench.restore, tmp_path / str(number - 1)).result()
        directory.mkdir()
        bench.call_ranks(Workbench.save, directory).result()
        identical(saved_in(directory, role), expected)


def identical(one: State, other: State) -> None:
    assert one.scheduler["last_epoch"] == other.scheduler["last_epoch"]
    assert one.model.keys() == other.model.keys()
    assert one.adam.keys() == other.adam.keys()
    assert all(torch.equal(one.model[name], tensor) for name, tensor in other.model.items())
    for name, held in other.adam.items():
        assert all(torch.equal(one.adam[name][key], value) for key, value in held.items()), name
