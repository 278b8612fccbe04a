"""The memory that a policy lends to the engines on its GPU, without a GPU.

What stands in for torch counts as `torch/csrc/CudaIPCTypes.h` does: a lent tensor has the count 1,
each process that closes it takes 1 away, and only a tensor whose count is exactly 0 is freed.
"""

from __future__ import annotations

import pickle
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing import reductions

from trainer.cluster.shared_memory import Entry
from trainer.weight_sync.cuda_ipc import NOBODY, IpcSender

COUNTER, OFFSET = b"/torch_1_2_3", "ref_counter_offset"


class Storage:
    counts: dict[bytes, int]

    @classmethod
    def _release_ipc_counter(cls, counter: bytes, place: int, device: Any = None) -> None:
        """As torch's own: it does not know of every counter, and says nothing then."""
        if counter in cls.counts:
            cls.counts[counter] -= 1


def lent(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    Storage.counts = {COUNTER: 1}
    known = {"storage_cls": Storage, "ref_counter_handle": COUNTER, OFFSET: 7}
    names = signature(reductions.rebuild_cuda_tensor).parameters
    return reductions.rebuild_cuda_tensor, tuple(known.get(name, name) for name in names)


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(reductions, "reduce_tensor", lent)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    gpu = SimpleNamespace(uuid="GPU-0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    for done in ("ipc_collect", "empty_cache"):
        monkeypatch.setattr(torch.cuda, done, lambda: None)


@pytest.mark.parametrize("engines", [0, 1, 2, 3])
def test_lent_memory_is_freed_however_many_engines_have_opened_it(engines: int) -> None:
    sender = IpcSender(64, buffers=2)
    part = (Entry("weight", "float32", (2,), 0),)
    handle = sender.lend(part, {"weight": torch.ones(2)})
    for _ in range(engines):
        opened = signature(reductions.rebuild_cuda_tensor).bind(*pickle.loads(handle.handle))
        counter, place = (opened.arguments[name] for name in ("ref_counter_handle", OFFSET))
        opened.arguments["storage_cls"]._release_ipc_counter(counter, place)
    sender.end()
    assert Storage.counts == {COUNTER: 0}


def test_buckets_go_into_two_buffers_of_one_allocation_in_turn() -> None:
    part = (Entry("weight", "float32", (3,), 0),)
    sender = IpcSender(12, buffers=2)
    found = []
    for value in (1.0, 2.0, 3.0):
        handle = sender.lend(part, {"weight": torch.full((3,), value)})
        opened = signature(reductions.rebuild_cuda_tensor).bind(*pickle.loads(handle.handle))
        begin, (size,) = (opened.arguments[f"tensor_{name}"] for name in ("offset", "size"))
        found.append((begin, size))
        buffer = sender._memory[begin : begin + size]
        assert buffer[:12].view(torch.float32).tolist() == [value] * 3
    assert found == [(0, 64), (64, 64), (0, 64)]
    kept = sender._memory[64:76].view(torch.float32).tolist()
    assert kept == [2.0] * 3, "a bucket stays until the one after the next is lent"


def test_torch_releases_a_count_by_these_arguments() -> None:
    """Of each class of storage that a lent tensor may name."""
    for kind in (torch.storage.TypedStorage, torch.FloatStorage, torch.UntypedStorage):
        signature(kind._release_ipc_counter).bind(COUNTER, 7)


@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
def test_torch_passes_over_a_counter_that_does_not_exist() -> None:
    torch.UntypedStorage._release_ipc_counter_cuda(NOBODY, 7)
