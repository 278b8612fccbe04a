"""The policy's side of the CUDA IPC backend: a buffer that engines on the same GPU open."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor

from trainer.weight_sync.messages import BucketSpec, IpcHandle
from trainer.weight_sync.packing import pack


class IpcSender:
    """A buffer on this rank's GPU that engines on the same GPU open by CUDA IPC."""

    def __init__(self, size: int) -> None:
        """`size`: bytes of the largest bucket."""
        from torch.multiprocessing.reductions import reduce_tensor

        self._buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        # Once, as the engines open it once: torch counts the one against the other.
        self._handle = pickle.dumps(reduce_tensor(self._buffer)[1])
        device = torch.accelerator.current_device_index()
        self._gpu = str(torch.cuda.get_device_properties(device).uuid)

    def lend(self, bucket: BucketSpec, tensors: dict[str, Tensor]) -> IpcHandle:
        pack(tensors, self._buffer)
        torch.cuda.current_stream().synchronize()
        return IpcHandle(bucket, self._gpu, self._handle)

    def end(self) -> None:
        del self._buffer
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
