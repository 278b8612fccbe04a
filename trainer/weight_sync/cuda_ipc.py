"""The policy's side of the CUDA IPC backend: buffers that engines on the same GPU open."""

from __future__ import annotations

import inspect
import pickle
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from trainer.cluster.shared_memory import aligned
from trainer.weight_sync.messages import BucketSpec, IpcHandle
from trainer.weight_sync.packing import pack

COUNTER, PLACE = "ref_counter_handle", "ref_counter_offset"
NOBODY = b"/rollcall-counts-nobody"
"""Name of a counter that does not exist: torch passes over it, as over that of an ended process."""


def gpu() -> str:
    """Return the UUID of this process's GPU."""
    device = torch.accelerator.current_device_index()
    return str(torch.cuda.get_device_properties(device).uuid)


class IpcSender:
    """Buffers on this rank's GPU, in turn, that engines on the same GPU open by CUDA IPC.

    torch expects exactly one process to open what is lent, and never frees what none, several or a
    killed one has opened. So engines open the memory without torch's count, which `end` settles.
    """

    def __init__(self, size: int, buffers: int) -> None:
        """`size`: bytes of the largest bucket."""
        from torch.multiprocessing.reductions import reduce_tensor

        size = aligned(size)
        # One allocation for all: an engine opens it once, and not again for each bucket.
        self._memory = torch.empty(buffers * size, dtype=torch.uint8, device="cuda")
        self._lent = _by_name(reduce_tensor(self._memory)[1])
        self._gpu = gpu()
        starts = range(0, buffers * size, size)
        self._buffers = cycle(
            [(self._memory[at : at + size], self._handle(at, size)) for at in starts]
        )

    def _handle(self, begin: int, size: int) -> bytes:
        part = {"tensor_offset": begin, "tensor_size": torch.Size([size]), COUNTER: NOBODY}
        return pickle.dumps(tuple({**self._lent, **part}.values()))

    def lend(self, bucket: BucketSpec, tensors: dict[str, Tensor]) -> IpcHandle:
        """Fill the next buffer. No engine reads any more what was in it."""
        buffer, handle = next(self._buffers)
        pack(tensors, buffer)
        torch.cuda.current_stream().synchronize()
        return IpcHandle(bucket, self._gpu, handle)

    def end(self) -> None:
        """Free the buffers. No engine has them open any more."""
        self._lent["storage_cls"]._release_ipc_counter(self._lent[COUNTER], self._lent[PLACE])
        del self._memory, self._buffers
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


def _by_name(opened_with: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments with which torch opens lent memory, by their names, in order."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    return inspect.signature(rebuild_cuda_tensor).bind(*opened_with).arguments
