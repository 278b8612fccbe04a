"""How new weights get into vLLM: its own weight-transfer calls, on each of the ways there are.

vLLM has an end of each way in its workers, found by its name. That of shared memory is ours
(`vllm_weights`); `nccl` and `ipc` are vLLM's.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from trainer.types import BrokenGroupError, EngineFailedError
from trainer.weight_sync import shared_memory, vllm_shared_memory
from trainer.weight_sync.messages import Bucket, BucketSpec, GroupRank, IpcHandle, Member

AT_START: dict[str, dict[str, Any]] = {"shared_memory": {}, "ipc": {"packed": True}}
"""What vLLM's end of a way is told before any weights; `nccl`'s is told where its group meets."""


class Intake:
    def __init__(self, llm: Any, backend: str, ranks: int) -> None:
        """`llm` is vLLM's LLM, `ranks` its tensor parallel size."""
        self._llm = llm
        self.member = Member(uuid4().hex, ranks)
        if backend in AT_START:
            llm.init_weight_transfer_engine({"init_info": AT_START[backend]})
        self.under_way = False
        """An update has begun and is not committed."""

    def join(self, seat: GroupRank) -> None:
        self._llm.collective_rpc("leave_group")
        try:
            self._llm.init_weight_transfer_engine({"init_info": place_of(seat)})
        except Exception as error:  # of vLLM's store, of NCCL, of a worker's process
            said = " ".join(str(error).split())
            raise BrokenGroupError(f"{seat.host}, port {seat.port}: {said}") from error

    def begin(self) -> None:
        if self.under_way:  # what came is of no use, and vLLM would take no tensor of it again
            self._llm.finish_weight_update()
        self._llm.start_weight_update()
        self.under_way = True

    def load(self, parcel: Bucket) -> None:
        self._update(vllm_shared_memory.described(parcel))

    def receive(self, part: BucketSpec) -> None:
        self._update(kinds_of(part))

    def borrow(self, lent: Sequence[IpcHandle]) -> None:
        self._update(opened(lent))

    def _update(self, info: dict[str, Any]) -> None:
        try:
            self._llm.update_weights({"update_info": info})
        except RuntimeError as error:  # of NCCL or a GPU; vLLM is left with half of the weights
            said = " ".join(str(error).split())
            raise EngineFailedError(f"vLLM did not take a part of the weights: {said}") from error

    def commit(self, version: int) -> None:
        self._llm.finish_weight_update(str(version))
        self.under_way = False
        self._llm.reset_prefix_cache()  # it holds what the old weights computed

    @property
    def version(self) -> int:
        version: str = self._llm.get_weight_version()
        return int(version) if version.isdigit() else 0


def place_of(seat: GroupRank) -> dict[str, Any]:
    """The fields of vLLM's NCCLWeightTransferInitInfo."""
    return {
        "master_address": seat.host,
        "master_port": seat.port,
        "rank_offset": seat.first,
        "world_size": seat.world,
        "packed": True,
        "packed_buffer_size_bytes": shared_memory.PART_BYTES,
    }


def kinds_of(part: BucketSpec) -> dict[str, Any]:
    """The fields of vLLM's NCCLWeightTransferUpdateInfo."""
    return {
        "names": [entry.name for entry in part],
        "dtype_names": [entry.dtype for entry in part],
        "shapes": [list(entry.shape) for entry in part],
    }


def opened(lent: Sequence[IpcHandle]) -> dict[str, Any]:
    """The fields of vLLM's IPCWeightTransferUpdateInfo: each worker finds its own GPU's handle."""
    return kinds_of(lent[0].bucket) | {
        "tensor_sizes": [shared_memory.size_of(entry) for entry in lent[0].bucket],
        "ipc_handles": {one.gpu: pickle.loads(one.handle) for one in lent},
    }
