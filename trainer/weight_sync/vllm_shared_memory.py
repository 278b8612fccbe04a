"""The worker's end of the shared-memory backend, as a weight transfer engine of vLLM.

vLLM's weight transfer has an engine in each worker, found by name in its factory. This one reads
shared memory; vLLM's own `nccl` and `ipc` do the same on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from trainer.cluster.shared_memory import Address, Entry
from trainer.models import gpu_memory
from trainer.models.fingerprint import fingerprint
from trainer.weight_sync.messages import Bucket
from trainer.weight_sync.shared_memory import SharedMemoryReceiver

BACKEND = "shared_memory"
BEFORE_MODEL = gpu_memory.resident()
"""Bytes of a worker's process when it imports this module, before it loads the model."""


@dataclass
class NothingToAgreeOn(WeightTransferInitInfo):  # type: ignore[misc]
    pass


@dataclass
class BucketInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A bucket in plain values, as vLLM passes them to its workers."""

    address: tuple[str, int, int]
    entries: Sequence[tuple[str, str, tuple[int, ...], int]]
    begin: int
    end: int

    @property
    def bucket(self) -> Bucket:
        entries = tuple(Entry(*entry) for entry in self.entries)
        return Bucket(Address(*self.address), entries, self.begin, self.end)


def described(bucket: Bucket) -> dict[str, Any]:
    """A BucketInfo's fields."""
    entries = [(e.name, e.dtype, e.shape, e.offset) for e in bucket.entries]
    address = bucket.address
    place = (address.path, address.inode, address.size)
    return {"address": place, "entries": entries, "begin": bucket.begin, "end": bucket.end}


class SharedMemoryEngine(WeightTransferEngine[NothingToAgreeOn, BucketInfo]):  # type: ignore[misc]
    init_info_cls = NothingToAgreeOn
    update_info_cls = BucketInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._inbox = SharedMemoryReceiver()

    def init_transfer_engine(self, init_info: NothingToAgreeOn) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BucketInfo) -> None:
        # vLLM keeps views of a layer's tensors until all of them are there; they stay as they
        # are until the policy offers its next version, which is after `finish_weight_update`.
        with disable_mtp_completeness_check():
            self.model.load_weights(self._inbox.tensors(update_info.bucket))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for module in self.model.modules():
            # A head that shares the embedding's weight gets none of its own, and would go on
            # with what it was packed from when the model was loaded.
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        pass


class Worker:
    """What is added to vLLM's worker, which imports this module when it looks it up."""

    weight_transfer_engine: Any
    device: torch.device
    get_model: Callable[[], nn.Module]

    def gpu(self) -> str:
        """Return the UUID of the worker's GPU."""
        return str(torch.cuda.get_device_properties(self.device).uuid)

    def forget_derived_weights(self) -> None:
        """Drop what vLLM computes once from a model's weights, and would keep with new ones.

        On CPUs it packs the weights of experts as a layer's kernel is set up, so each update sets
        it up again. On ROCm the weights of two gates are joined at the first forward pass.
        """
        for module in self.get_model().modules():
            method: Any = getattr(module, "quant_method", None)
            if getattr(method, "unquantized_backend", None) is UnquantizedMoeBackend.CPU:
                method.moe_kernel = None
            if getattr(module, "_combined_gate_weight", None) is not None:
                module._combined_gate_weight = None  # type: ignore[assignment]

    def layers_without_weights(self) -> list[str]:
        """Return the layers of which a weight update has brought nothing so far.

        vLLM would keep their old weights, with a warning that its logging hides here.
        """
        found = []
        for name, layer in self.get_model().named_modules():
            info = get_layerwise_info(layer)
            waits = info.can_load() and not info.load_numel and info.load_numel_total
            if not waits or is_deferred_attention_layer(layer):
                continue
            own = [one for one, _ in layer.named_parameters(recurse=False)]
            if own and not isinstance(layer, ParallelLMHead):  # a tied head has the embedding's
                found.append(name)
        return found

    def weights_fingerprint(self) -> int:
        return fingerprint(self.get_model().parameters())

    def peak_memory(self) -> int:
        """Return the most bytes since the last call: of the GPU's, or of a process on CPUs."""
        peak = gpu_memory.peak_since_last_call()
        return peak if torch.cuda.is_available() else peak - BEFORE_MODEL

    def memory_asleep(self) -> int:
        """Return the bytes that a sleeping worker holds.

        torch counts the memory that vLLM's allocator has given back as if it were still there.
        """
        if not torch.cuda.is_available():
            return gpu_memory.resident() - BEFORE_MODEL
        from vllm.device_allocator.cumem import CuMemAllocator

        pieces = CuMemAllocator.get_instance().pointer_to_data.values()
        given_back: int = sum(one.handle[1] for one in pieces if one.is_asleep)
        return torch.cuda.memory_reserved() - given_back

    def leave_group(self) -> None:
        """Of the policy's broadcasts: vLLM itself would keep its GPU's memory."""
        if group := self.weight_transfer_engine.model_update_group:
            group.destroy()
            self.weight_transfer_engine.model_update_group = None


EXTENSION = f"{__name__}.{Worker.__name__}"

WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)
