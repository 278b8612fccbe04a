from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainer import shared, weights
from trainer.shared import Parcel
from trainer.types import Weights


def through_shared_memory(outbox: weights.Outbox, state: dict[str, Tensor]) -> list[Parcel]:
    return [outbox.stage(part) for part in outbox.offer(state, size=12)]


def as_arrays(outbox: weights.Outbox, state: dict[str, Tensor]) -> list[Weights]:
    sent = [weights.export(outbox.tensors(part)) for part in outbox.offer(state, size=12)]
    for array in (array for part in sent for array in part.values()):
        array.flags.writeable = False  # as they come out of the object store
    return sent


@pytest.mark.parametrize("way", [through_shared_memory, as_arrays])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_to_the_bit_in_any_precision_version_after_version(
    way: object, dtype: torch.dtype
) -> None:
    source, target = nn.Linear(3, 2).to(dtype), nn.Linear(3, 2).to(dtype)
    outbox, inbox = weights.Outbox(), weights.Inbox()
    for _ in range(2):
        nn.init.normal_(source.weight)
        given = way(outbox, source.state_dict())  # type: ignore[operator]
        assert len(given) == 2
        for part in given:
            weights.load(target, dict(inbox.tensors(part)))
        assert torch.equal(source.weight, target.weight)
        assert torch.equal(source.bias, target.bias)


def test_a_master_in_fp32_feeds_an_engine_in_bf16() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2).to(torch.bfloat16)
    weights.load(target, dict(weights.Inbox().tensors(weights.export(source.state_dict()))))
    assert torch.equal(target.weight, source.weight.to(torch.bfloat16))


def test_exported_weights_are_views_not_copies() -> None:
    model = nn.Linear(3, 2)
    assert np.shares_memory(
        weights.export(model.state_dict())["weight"], model.weight.detach().numpy()
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [(100, [("a", "b", "c")]), (8, [("a", "b"), ("c",)]), (1, [("a",), ("b",), ("c",)])],
)
def test_parts_are_as_large_as_asked_for_or_one_tensor(
    size: int, expected: list[tuple[str, ...]]
) -> None:
    state = {"a": torch.zeros(1), "b": torch.zeros(1), "c": torch.zeros(5)}
    assert weights.parts(state, size) == expected


def test_versions_of_one_shape_share_one_segment() -> None:
    outbox = weights.Outbox()
    state = {"a": torch.zeros(5)}
    first, second = (through_shared_memory(outbox, state)[0].address for _ in range(2))
    assert first == second
    assert through_shared_memory(outbox, {"a": torch.zeros(50)})[0].address != first


def test_another_process_of_the_node_reads_a_parcel_where_it_lies() -> None:
    outbox = weights.Outbox()
    (parcel,) = through_shared_memory(outbox, {"a": torch.arange(3.0)})
    reader = (
        "from trainer.shared import *; from trainer.weights import Inbox; "
        f"print(node(), dict(Inbox().tensors({parcel!r}))['a'].tolist())"
    )
    said = subprocess.run(
        [sys.executable, "-c", reader],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == f"{shared.node()} [0.0, 1.0, 2.0]"
