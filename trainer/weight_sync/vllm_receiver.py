"""Loads new weights into vLLM with vLLM's weight-transfer calls, for each backend.

vLLM's workers have a transfer engine for each backend, found by its name. The engine for shared
memory is ours (`vllm_shared_memory`); `nccl` and `ipc` are vLLM's.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from trainer.types import BrokenGroupError, EngineFailedError, TrainingError
from trainer.weight_sync import shared_memory, vllm_shared_memory
from trainer.weight_sync.messages import Bucket, BucketSpec, GroupRank, IpcHandle, Member

AT_START: dict[str, dict[str, Any]] = {"shared_memory": {}, "ipc": {"packed": True}}
"""Backend → settings that vLLM's transfer engine gets first. `nccl` gets them in `join`."""


class VllmReceiver:
    def __init__(self, llm: Any, backend: str, ranks: int) -> None:
        """`llm` is vLLM's LLM, `ranks` its tensor parallel size."""
        self._llm = llm
        self.member = Member(uuid4().hex, ranks)
        if backend in AT_START:
            llm.init_weight_transfer_engine({"init_info": AT_START[backend]})
        self.under_way = False
        """A weight update has begun and is not committed."""

    def join(self, rank: GroupRank) -> None:
        self._llm.collective_rpc("leave_group")
        try:
            self._llm.init_weight_transfer_engine({"init_info": place_of(rank)})
        except Exception as error:  # an error of vLLM's store, of NCCL, or of a worker's process
            said = " ".join(str(error).split())
            raise BrokenGroupError(f"{rank.host}, port {rank.port}: {said}") from error

    def begin(self) -> None:
        if self.under_way:  # end the incomplete update: vLLM refuses tensors that it has already
            self._llm.finish_weight_update()
        self._llm.collective_rpc("forget_derived_weights")
        self._llm.start_weight_update()
        self.under_way = True

    def load(self, bucket: Bucket) -> None:
        self._update(vllm_shared_memory.described(bucket))

    def receive(self, bucket: BucketSpec) -> None:
        self._update(kinds_of(bucket))

    def gpus(self) -> list[str]:
        gpus: list[str] = self._llm.collective_rpc("gpu")
        return gpus

    def borrow(self, lent: Sequence[IpcHandle]) -> None:
        self._update(opened(lent))

    def _update(self, info: dict[str, Any]) -> None:
        try:
            self._llm.update_weights({"update_info": info})
        except (
            RuntimeError
        ) as error:  # an error of NCCL or a GPU: vLLM has an incomplete mix of weights
            said = " ".join(str(error).split())
            raise EngineFailedError(f"vLLM did not take a bucket of weights: {said}") from error

    def commit(self, version: int) -> None:
        """End the update. Raises TrainingError if it has left out layers."""
        for layers in self._llm.collective_rpc("layers_without_weights"):
            if layers:
                raise TrainingError(
                    f"vLLM has found no new weights for {len(layers)} of its layers, such as "
                    f"{layers[0]}: it names them otherwise than transformers does. "
                    "--rollout_engine hf decodes without vLLM"
                )
        self._llm.finish_weight_update(str(version))
        self.under_way = False
        if not self._llm.reset_prefix_cache():
            raise EngineFailedError("vLLM keeps keys and values of the old weights in its cache")

    @property
    def version(self) -> int:
        version: str = self._llm.get_weight_version()
        return int(version) if version.isdigit() else 0


def place_of(rank: GroupRank) -> dict[str, Any]:
    """Return the fields of vLLM's NCCLWeightTransferInitInfo."""
    return {
        "master_address": rank.host,
        "master_port": rank.port,
        "rank_offset": rank.first,
        "world_size": rank.world,
        "packed": True,
        "packed_buffer_size_bytes": shared_memory.BUCKET_BYTES,
    }


def kinds_of(bucket: BucketSpec) -> dict[str, Any]:
    """Return the fields of vLLM's NCCLWeightTransferUpdateInfo."""
    return {
        "names": [entry.name for entry in bucket],
        "dtype_names": [entry.dtype for entry in bucket],
        "shapes": [list(entry.shape) for entry in bucket],
    }


def opened(lent: Sequence[IpcHandle]) -> dict[str, Any]:
    """Return the fields of vLLM's IPCWeightTransferUpdateInfo, with a handle for each GPU."""
    return kinds_of(lent[0].bucket) | {
        "tensor_sizes": [shared_memory.size_of(entry) for entry in lent[0].bucket],
        "ipc_handles": {handle.gpu: pickle.loads(handle.handle) for handle in lent},
    }
