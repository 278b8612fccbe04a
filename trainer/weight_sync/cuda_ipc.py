"""The policy's side of the CUDA IPC backend: a buffer that engines on the same GPU open."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import torch
from torch import Tensor

from trainer.weight_sync.messages import BucketSpec, IpcHandle
from trainer.weight_sync.packing import pack

COUNTER, PLACE = "ref_counter_handle", "ref_counter_offset"
NOBODY = b"/rollcall-counts-nobody"
"""Name of a counter that does not exist: torch passes over it, as over that of an ended process."""


class IpcSender:
    """A buffer on this rank's GPU that engines on the same GPU open by CUDA IPC.

    torch expects exactly one process to open what is lent, and never frees what none, several or a
    killed one has opened. So engines open the buffer without torch's count, which `end` settles.
    """

    def __init__(self, size: int) -> None:
        """`size`: bytes of the largest bucket."""
        from torch.multiprocessing.reductions import reduce_tensor

        self._buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        self._lent = _by_name(reduce_tensor(self._buffer)[1])
        self._handle = pickle.dumps(tuple({**self._lent, COUNTER: NOBODY}.values()))
        device = torch.accelerator.current_device_index()
        self._gpu = str(torch.cuda.get_device_properties(device).uuid)

    def lend(self, bucket: BucketSpec, tensors: dict[str, Tensor]) -> IpcHandle:
        pack(tensors, self._buffer)
        torch.cuda.current_stream().synchronize()
        return IpcHandle(bucket, self._gpu, self._handle)

    def end(self) -> None:
        """Free the buffer. No engine has it open any more."""
        self._lent["storage_cls"]._release_ipc_counter(self._lent[COUNTER], self._lent[PLACE])
        del self._buffer
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


def _by_name(opened_with: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments with which torch opens lent memory, by their names, in order."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    return inspect.signature(rebuild_cuda_tensor).bind(*opened_with).arguments
