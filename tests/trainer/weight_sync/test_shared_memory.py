from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.support.engines import State, staged
from trainer.cluster import shared_memory
from trainer.cluster.tcp_stream import SECRET_BYTES, StreamSource
from trainer.types import TrainingError
from trainer.weight_sync import shared_memory as weights
from trainer.weight_sync.messages import Bucket

Parcels = Iterator[Bucket]


def on_the_node(
    outbox: weights.SharedMemorySender, inbox: weights.SharedMemoryReceiver, state: State
) -> Parcels:
    for part in outbox.offer(state, size=12):
        yield outbox.stage(part)


def from_another_node(
    outbox: weights.SharedMemorySender, inbox: weights.SharedMemoryReceiver, state: State
) -> Parcels:
    for part in outbox.offer(state, size=12):
        bucket = inbox.fetch(outbox.stage(part, to_other_nodes=True))
        assert bucket.address != outbox.stage(part).address
        yield bucket


@pytest.mark.parametrize("way", [on_the_node, from_another_node])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_to_the_bit_in_any_precision_version_after_version(
    way: Callable[[weights.SharedMemorySender, weights.SharedMemoryReceiver, State], Parcels],
    dtype: torch.dtype,
) -> None:
    source, target = nn.Linear(3, 2).to(dtype), nn.Linear(3, 2).to(dtype)
    outbox, inbox = weights.SharedMemorySender(), weights.SharedMemoryReceiver()
    for _ in range(2):
        nn.init.normal_(source.weight)
        given = list(way(outbox, inbox, source.state_dict()))
        assert len(given) == 2
        for bucket in given:
            weights.load(target, dict(inbox.tensors(bucket)))
        assert torch.equal(source.weight, target.weight)
        assert torch.equal(source.bias, target.bias)


def test_a_master_in_fp32_feeds_an_engine_in_bf16_with_half_the_bytes() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2).to(torch.bfloat16)
    outbox = weights.SharedMemorySender(torch.bfloat16)
    (part,) = outbox.offer(source.state_dict())
    bucket = outbox.stage(part)
    assert {entry.dtype for entry in bucket.entries} == {"bfloat16"}
    weights.load(target, dict(weights.SharedMemoryReceiver().tensors(bucket)))
    assert torch.equal(target.weight, source.weight.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(100, [("a", "b", "c")]), (8, [("a", "b"), ("c",)]), (1, [("a",), ("b",), ("c",)])],
)
def test_parts_are_as_large_as_asked_for_or_one_tensor(
    size: int, expected: list[tuple[str, ...]]
) -> None:
    state = {"a": torch.zeros(1), "b": torch.zeros(1), "c": torch.zeros(5)}
    parts = weights.SharedMemorySender().offer(state, size)
    assert [tuple(entry.name for entry in part) for part in parts] == expected


def test_versions_of_one_shape_share_one_segment() -> None:
    outbox = weights.SharedMemorySender()
    state = {"a": torch.zeros(5)}
    first, second = (staged(outbox, state).address for _ in range(2))
    assert first == second
    assert staged(outbox, {"a": torch.zeros(50)}).address != first


def test_a_model_that_lies_in_shared_memory_is_read_where_it_is_trained() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    outbox, inbox = weights.SharedMemorySender(), weights.SharedMemoryReceiver()
    before = source.weight.detach().clone()
    outbox.adopt(source)
    assert torch.equal(source.weight, before)
    optimizer = torch.optim.SGD(source.parameters(), lr=0.1)
    source(torch.ones(3)).sum().backward()
    optimizer.step()
    bucket = staged(outbox, source.state_dict())
    weights.load(target, dict(inbox.tensors(bucket)))
    assert torch.equal(target.weight, source.weight)
    assert not torch.equal(target.weight, before)
    with torch.no_grad():
        source.bias.fill_(7.0)
    assert dict(inbox.tensors(bucket))["bias"].tolist() == [7.0, 7.0]


def test_a_stream_without_the_secret_gives_nothing() -> None:
    bucket = staged(weights.SharedMemorySender(), {"a": torch.arange(3.0)}, to_other_nodes=True)
    assert bucket.source is not None
    stranger = replace(bucket, source=replace(bucket.source, secret=bytes(SECRET_BYTES)))
    with pytest.raises(TrainingError, match=r"cannot be read from the policy's node at 127.0.0.1"):
        weights.SharedMemoryReceiver().fetch(stranger)
    assert weights.SharedMemoryReceiver().fetch(bucket).entries == bucket.entries


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        outbox = weights.SharedMemorySender(port=port)
        said = rf"--vllm_sync_port {port} .* 127.0.0.1: Address already in use. Give .* 0 for any"
        with pytest.raises(TrainingError, match=said):
            staged(outbox, {"a": torch.arange(3.0)}, to_other_nodes=True)
        staged(outbox, {"a": torch.arange(3.0)})
    bucket = staged(outbox, {"a": torch.arange(3.0)}, to_other_nodes=True)
    assert bucket.source is not None
    assert bucket.source.port == port


def test_a_policy_s_node_that_is_gone_is_named_with_its_port(closed_port: int) -> None:
    bucket = staged(weights.SharedMemorySender(), {"a": torch.arange(3.0)})
    bucket = replace(bucket, source=StreamSource("127.0.0.1", closed_port, bytes(SECRET_BYTES)))
    with pytest.raises(TrainingError, match=rf"node at 127.0.0.1, port {closed_port}: .*refused"):
        weights.SharedMemoryReceiver().fetch(bucket)


def test_another_process_of_the_node_reads_a_parcel_where_it_lies() -> None:
    outbox = weights.SharedMemorySender()
    bucket = staged(outbox, {"a": torch.arange(3.0)})
    reader = (
        "from trainer.cluster.shared_memory import *; from trainer.cluster.tcp_stream import *; "
        "from trainer.weight_sync.messages import *; "
        "from trainer.weight_sync.shared_memory import SharedMemoryReceiver; "
        f"print(node(), dict(SharedMemoryReceiver().tensors({bucket!r}))['a'].tolist())"
    )
    said = subprocess.run(
        [sys.executable, "-c", reader],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == f"{shared_memory.node()} [0.0, 1.0, 2.0]"
