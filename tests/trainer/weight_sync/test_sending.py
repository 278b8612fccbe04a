"""What the policy sends from GPU to GPU, on a machine without one: whole, in parts, end to end."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest
import torch

from tests.support.learners import Weights, experience, lora, policy, weights_of
from tests.support.ragged import learn
from tests.support.tiny_run import Tiny
from trainer.cluster import memory_estimate
from trainer.types import BrokenGroupError, TrainingError
from trainer.weight_sync import shared_memory
from trainer.weight_sync.messages import Member
from trainer.weight_sync.nccl import NcclSender, within
from trainer.weight_sync.packing import WeightSource, pack
from trainer.workers.policy import PolicyActor


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "GPU_BUCKET_BYTES", 4096)


def trained(tiny: Tiny, **changes: object) -> PolicyActor:
    actor = policy(tiny, **changes)
    learn(actor, experience(), 1)
    return actor


@pytest.mark.parametrize("changes", [{}, {"lora": lora()}])
def test_what_leaves_in_parts_is_what_the_policy_computes_with(
    tiny: Tiny, changes: dict[str, object]
) -> None:
    actor = trained(tiny, **changes)
    parts = actor.announce()
    assert len(parts) > 2
    found: Weights = {}
    for part in parts:
        with actor._offered.whole(part) as tensors:
            assert [*tensors] == [entry.name for entry in part]
            assert [tuple(t.shape) for t in tensors.values()] == [entry.shape for entry in part]
            found |= {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    actor.withdraw()
    expected = weights_of(actor)
    assert [*found] == [*expected]
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_a_part_is_packed_without_gaps_in_the_precision_of_the_engines(tiny: Tiny) -> None:
    actor = trained(tiny)
    offered = WeightSource(actor._model, torch.bfloat16)
    part, *_ = offered.buckets()
    assert {entry.dtype for entry in part} == {"bfloat16"}
    buffer = torch.zeros(offered.largest, dtype=torch.uint8)
    with offered.whole(part) as tensors:
        pack(tensors, buffer)
        sent = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    size = sum(map(shared_memory.size_of, part))
    assert size <= offered.largest
    assert torch.equal(buffer[:size].view(torch.bfloat16), sent)


def test_a_port_that_is_taken_is_named_before_any_engine_is_asked_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = rf"--vllm_sync_port {port} .* 127.0.0.1: Address already in use. Give .* 0 for any"
        with pytest.raises(TrainingError, match=said):
            NcclSender(port).meet((Member("one", 1),))


def test_nothing_is_waited_for_without_an_end() -> None:
    assert within(5, lambda: 3, "late") == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0, "late")
    ended = threading.Event()
    with pytest.raises(BrokenGroupError, match="late"):
        within(0.1, lambda: ended.wait(60), "late")
    ended.set()


def test_without_a_group_nothing_is_sent() -> None:
    with pytest.raises(BrokenGroupError, match="group of the weight sync is broken"):
        NcclSender(0).send({}, 1.0)
