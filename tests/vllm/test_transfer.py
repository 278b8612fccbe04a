"""What goes to vLLM's own ends of a weight transfer, checked by the vLLM that is installed.

Every name, argument and field that is used of it is looked up there; the group's meeting runs in
real processes. Only NCCL and CUDA themselves need a GPU: `test_weights_on_gpus`.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.types import BrokenGroupError, TrainingError
from trainer.weight_sync import shared_memory
from trainer.weight_sync.messages import BucketSpec, GroupRank, GroupRendezvous, IpcHandle, Member
from trainer.weight_sync.nccl import NcclSender
from trainer.weight_sync.packing import pack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

TRANSFER = "vllm.distributed.weight_transfer"
PYNCCL = "vllm.distributed.device_communicators.pynccl:PyNcclCommunicator"
MEETING = "vllm.distributed.utils:StatelessProcessGroup.create"
PRODUCER = f"{TRANSFER}.packed_tensor:packed_nccl_broadcast_producer"
SEAT = GroupRank("10.0.0.1", 29500, 3, 7)
TENSORS = {"embed": torch.arange(12.0).view(4, 3), "norm": torch.ones(3), "head": torch.randn(5, 3)}
WORKERS = """
import os, sys
from vllm.distributed.utils import StatelessProcessGroup
print("imported", flush=True)
for line in sys.stdin:
    port, rank, world = map(int, line.split())
    if os.fork() == 0:
        StatelessProcessGroup.create(host="127.0.0.1", port=port, rank=rank, world_size=world)
        os.write(1, b"%d\\n" % rank)  # whole, whoever else writes now
        os._exit(0)
"""


def of_vllm(name: str) -> Any:
    """Only here: who does not run these tests does not wait for vLLM."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for one in path.split("."):
        found = getattr(found, one)
    return found


def engine(backend: str) -> Any:
    """vLLM's own end, in no worker."""
    known = of_vllm(f"{TRANSFER}:WeightTransferEngineFactory")
    config = of_vllm("vllm.config:WeightTransferConfig")(backend=backend)
    rest = SimpleNamespace(parallel_config=None, model_config=None)
    return known.create_engine(config, rest, torch.device("cpu"), torch.nn.Module())


def part() -> BucketSpec:
    kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in TENSORS.items()}
    (only,) = shared_memory.buckets(shared_memory.laid_out(kinds), shared_memory.BUCKET_BYTES)
    return only


@pytest.mark.parametrize(
    ("called", "arguments"),
    [
        ("vllm:LLM.init_weight_transfer_engine", ["request"]),
        ("vllm:LLM.start_weight_update", []),
        ("vllm:LLM.update_weights", ["request"]),
        ("vllm:LLM.finish_weight_update", ["weight_version"]),
        ("vllm:LLM.get_weight_version", []),
        (MEETING, ["host", "port", "rank", "world_size", "store_timeout", "listen_socket"]),
        (PYNCCL, ["group", "device"]),
        (f"{PYNCCL}.destroy", []),
        (PRODUCER, ["iterator", "group", "src", "post_iter_func", "buffer_size_bytes"]),
    ],
)
def test_what_is_called_takes_these_arguments(called: str, arguments: list[str]) -> None:
    taken = inspect.signature(of_vllm(called)).parameters
    assert set(arguments) <= taken.keys()
    needed = {n for n, p in taken.items() if p.default is p.empty and n != "self"}
    assert needed <= set(arguments)


def test_a_place_in_the_group_is_one_that_vllm_s_end_takes() -> None:
    from trainer.weight_sync.vllm_receiver import place_of

    info = engine("nccl").parse_init_info(place_of(SEAT))
    assert (info.master_address, info.master_port) == (SEAT.host, SEAT.port)
    assert (info.rank_offset, info.world_size) == (SEAT.first, SEAT.world)
    assert info.packed
    assert info.packed_buffer_size_bytes == shared_memory.BUCKET_BYTES
    ours = inspect.signature(of_vllm(PRODUCER)).parameters["num_buffers"].default
    assert info.packed_num_buffers == ours


def test_a_part_is_announced_as_vllm_s_end_takes_it() -> None:
    from trainer.weight_sync.vllm_receiver import kinds_of

    info = engine("nccl").parse_update_info(kinds_of(part()))
    assert info.names == [*TENSORS]
    assert [getattr(torch, name) for name in info.dtype_names] == [torch.float32] * 3
    assert info.shapes == [list(tensor.shape) for tensor in TENSORS.values()]


def test_a_part_goes_over_in_one_piece() -> None:
    """Of so many bytes as vLLM's receiving end counts."""
    taken_from = of_vllm(f"{TRANSFER}.packed_tensor:pack_tensors")
    stream = iter(TENSORS.items())
    sent = taken_from(stream, lambda item: item[1], shared_memory.BUCKET_BYTES)
    assert sent.tensor_sizes == [shared_memory.size_of(entry) for entry in part()]
    assert taken_from(stream, lambda item: item[1], shared_memory.BUCKET_BYTES) is None


def test_vllm_s_two_ends_cut_a_bucket_into_the_same_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine loads one while it receives the next."""
    packed = import_module(f"{TRANSFER}.packed_tensor")
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(packed, "_get_streams", lambda device, count: (stream,) * count)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    pieces: list[torch.Tensor] = []
    sends = SimpleNamespace(broadcast=lambda piece, src: pieces.append(piece.clone()))
    takes = SimpleNamespace(broadcast=lambda piece, src: piece.copy_(pieces.pop(0)))
    tensors = {str(n): torch.full((n + 1, 8), float(n)) for n in range(12)}
    kinds = ((name, ([*one.shape], one.dtype)) for name, one in tensors.items())
    found: list[dict[str, torch.Tensor]] = []
    packed.packed_nccl_broadcast_producer(
        iter(tensors.items()), sends, 0, lambda item: item[1], buffer_size_bytes=500
    )
    assert len(pieces) > 2
    count = len(pieces)
    packed.packed_nccl_broadcast_consumer(
        kinds, takes, 0, lambda some: found.append(dict(some)), 500, device="cpu"
    )
    assert len(found) == count
    assert all(torch.equal(one, tensors[name]) for some in found for name, one in some.items())
    assert [name for some in found for name in some] == [*tensors]


def test_what_is_lent_is_found_by_the_gpu_and_unpacked_by_vllm() -> None:
    from trainer.weight_sync.vllm_receiver import AT_START, opened

    end = engine("ipc")
    assert end.parse_init_info(AT_START["ipc"]).packed
    lent = [IpcHandle(part(), f"GPU-{n}", pickle.dumps(("opened with", n))) for n in range(2)]
    info = end.parse_update_info(opened(lent))
    assert info.ipc_handles == {"GPU-0": ("opened with", 0), "GPU-1": ("opened with", 1)}
    buffer = torch.zeros(1000, dtype=torch.uint8)
    pack(TENSORS, buffer)
    dtypes = [getattr(torch, name) for name in info.dtype_names]
    unpack = of_vllm(f"{TRANSFER}.packed_tensor:unpack_tensor")
    packed = buffer[: sum(info.tensor_sizes)]
    found = unpack(packed, info.names, info.shapes, dtypes, info.tensor_sizes)
    assert [name for name, _ in found] == [*TENSORS]
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in found)


def test_what_opens_lent_memory_is_in_the_form_that_vllm_takes_apart() -> None:
    """It replaces the seventh argument, the device, by the worker's own."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    assert [*inspect.signature(rebuild_cuda_tensor).parameters][6] == "storage_device"


def test_a_worker_leaves_the_group_that_it_is_in() -> None:
    from trainer.weight_sync.vllm_shared_memory import Worker

    class Group:
        left = False

        def destroy(self) -> None:
            self.left = True

    worker = Worker()
    worker.weight_transfer_engine = engine("nccl")
    worker.leave_group()
    group = worker.weight_transfer_engine.model_update_group = Group()
    worker.leave_group()
    assert group.left
    assert worker.weight_transfer_engine.model_update_group is None


class Workers:
    """Processes that come to a meeting as vLLM's workers do."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKERS],
            env=os.environ | {"LD_PRELOAD": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "imported\n"  # nobody waits for it at a meeting

    def come(self, meeting: GroupRendezvous) -> None:
        assert self._process.stdin
        for rank in range(1, meeting.world):
            print(meeting.port, rank, meeting.world, file=self._process.stdin, flush=True)

    def came(self, meeting: GroupRendezvous) -> set[int]:
        assert self._process.stdout
        return {int(self._process.stdout.readline()) for _ in range(1, meeting.world)}

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.end()


def met(broadcaster: NcclSender, *members: Member) -> GroupRendezvous:
    meeting = broadcaster.meet(members)
    assert meeting is not None
    return meeting


@pytest.mark.skipif(torch.cuda.is_available(), reason="an NCCL may be here")
def test_processes_meet_and_no_nccl_is_an_error_not_a_silence(
    workers: Workers, free_port: int
) -> None:
    """Twice on one port: it is free as soon as all have come."""
    broadcaster = NcclSender(free_port)
    for _ in range(2):
        meeting = met(broadcaster, Member("a", 2), Member("b", 1))
        assert meeting.port == free_port
        workers.come(meeting)
        with pytest.raises(TrainingError, match=r"no NCCL or RCCL here.*shared_memory"):
            broadcaster.gather(60)
        assert workers.came(meeting) == {1, 2, 3}


def test_a_rank_that_never_comes_is_waited_for_so_long_and_no_longer(free_port: int) -> None:
    of_vllm(MEETING)
    broadcaster = NcclSender(free_port)
    meeting = met(broadcaster, Member("a", 1), Member("b", 1))
    begun = time.monotonic()
    said = re.escape(f"not all 3 ranks came to 127.0.0.1, port {free_port} within 2 s")
    with pytest.raises(BrokenGroupError, match=said):
        broadcaster.gather(2)
    assert time.monotonic() - begun < 10
    assert met(broadcaster, Member("a", 1)).port == meeting.port
