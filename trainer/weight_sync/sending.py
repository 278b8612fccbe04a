"""The policy's end of the ways on which weights reach engines from GPU to GPU, part by part.

Each part is gathered whole where it is sharded, put into the engines' precision, and packed as
vLLM's ends unpack it: tensors end to end, without gaps.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from socket import socket
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trainer.cluster import tcp_stream
from trainer.cluster.background import in_background
from trainer.cluster.shared_memory import Lent, Part
from trainer.models import lora, zero3
from trainer.types import BrokenGroupError, TrainingError
from trainer.weight_sync import shared_memory
from trainer.weight_sync.choose import Meeting, Member

T = TypeVar("T")

PYNCCL = "vllm.distributed.device_communicators.pynccl"


class Offered:
    """A model's weights as engines know them, some at a time."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None) -> None:
        """`dtype`: what the engines compute with; each tensor's own where None, and of buffers."""
        self._model = model
        self._dtype = dtype
        self._sources: dict[str, tuple[str, ...]] = {}
        self.largest = 0
        """Bytes of the largest part."""

    def parts(self) -> list[Part]:
        """The same on every rank."""
        tensors = self._model.state_dict(keep_vars=True)
        self._sources = lora.sources(self._model, tensors)
        kinds = {}
        for name, (source, *_) in self._sources.items():
            tensor = tensors[source]
            cast = self._dtype if isinstance(tensor, nn.Parameter) else None
            kinds[name] = (cast or tensor.dtype, zero3.shape_of(tensor))
        # Without gaps a wider type must not follow a narrower one: it would begin unaligned.
        kinds = dict(sorted(kinds.items(), key=lambda one: -one[1][0].itemsize))
        found = shared_memory.parts(shared_memory.laid_out(kinds), shared_memory.PART_BYTES)
        self.largest = max(sum(map(shared_memory.size_of, part)) for part in found)
        return found

    @contextmanager
    def whole(self, part: Part) -> Iterator[dict[str, Tensor]]:
        """On every rank, on its device. Asked of all of them together."""
        tensors = self._model.state_dict(keep_vars=True)
        some = {name: tensors[name] for entry in part for name in self._sources[entry.name]}
        kinds = {entry.name: getattr(torch, entry.dtype) for entry in part}
        with zero3.whole(some.values()), torch.no_grad():
            merged = lora.merged(self._model, some)
            yield {name: tensor.to(kinds[name]) for name, tensor in merged.items()}


class Broadcaster:
    """The first rank's place in the group of all GPUs of all engines."""

    def __init__(self, port: int) -> None:
        """`port` of this node, where the group meets; 0 for one that is free."""
        self._port = port
        self._listener: socket | None = None
        self._meeting: Meeting | None = None
        self._store: Any = None
        """vLLM's StatelessProcessGroup, in which the group meets."""
        self._group: Any = None
        """vLLM's PyNcclCommunicator."""

    def meet(self, members: tuple[Member, ...]) -> Meeting | None:
        """None where the group is one of these already. Raises TrainingError for a taken port."""
        if self._group and self._meeting and self._meeting.members == members:
            return None
        self._leave()
        host = os.environ.get(tcp_stream.ADDRESS, "127.0.0.1")
        self._listener = tcp_stream.listening(host, self._port)
        import_module(PYNCCL)  # it takes seconds, for which nobody should wait at the meeting
        self._meeting = Meeting(host, self._listener.getsockname()[1], members)
        return self._meeting

    def gather(self, seconds: float) -> None:
        """Wait for all members. Raises BrokenGroupError, TrainingError where there is no NCCL."""
        assert self._meeting is not None
        place = f"{self._meeting.host}, port {self._meeting.port}"
        missing = f"not all {self._meeting.world} ranks came to {place} within {seconds:g} s"
        try:
            # The store gives up first, and frees the port.
            self._group = within(seconds + 2, lambda: self._communicator(seconds), missing)
            self._close()
        except (RuntimeError, OSError) as error:
            self._leave()
            if isinstance(error, TrainingError):
                raise
            raise BrokenGroupError(f"{missing}: {' '.join(str(error).split())}") from error

    def send(self, tensors: dict[str, Tensor], seconds: float) -> None:
        """To all of the group. Raises BrokenGroupError where one does not take it in time."""
        if self._group is None:
            raise BrokenGroupError("the weights' group has fallen apart")
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        torch.cuda.current_stream().synchronize()  # the producer reads on streams of its own

        def produce() -> None:
            packed_nccl_broadcast_producer(
                iterator=iter(tensors.items()),
                group=self._group,
                src=0,
                post_iter_func=lambda item: item[1],
                buffer_size_bytes=shared_memory.PART_BYTES,
            )

        try:
            within(seconds, produce, f"a part of the weights was not taken within {seconds:g} s")
        except RuntimeError as error:
            self._leave()
            if isinstance(error, TrainingError):
                raise
            said = " ".join(str(error).split())
            raise BrokenGroupError(f"a part of the weights was not sent: {said}") from error

    def _communicator(self, seconds: float) -> Any:
        self._rendezvous(seconds)
        device = torch.accelerator.current_device_index() if torch.cuda.is_available() else "cpu"
        communicator = import_module(PYNCCL).PyNcclCommunicator(self._store, device=device)
        if communicator.disabled:  # it would send nothing, and say nothing
            raise TrainingError(
                "weights cannot go by NCCL: vLLM finds no NCCL or RCCL here, or "
                "VLLM_DISABLE_PYNCCL is set. --vllm_sync_backend shared_memory does without"
            )
        return communicator

    def _rendezvous(self, seconds: float) -> None:
        from vllm.distributed.utils import StatelessProcessGroup

        assert self._meeting is not None
        listener, self._listener = self._listener, None
        self._store = StatelessProcessGroup.create(
            host=self._meeting.host,
            port=self._meeting.port,
            rank=0,
            world_size=self._meeting.world,
            store_timeout=math.ceil(seconds),
            listen_socket=listener,
        )

    def _leave(self) -> None:
        """Free the port, and what waits in NCCL on this rank."""
        if self._group is not None:
            self._group.destroy()
        self._close()
        self._group = self._meeting = None

    def _close(self) -> None:
        """Nobody meets here any more: the port is free."""
        if self._listener is not None:
            self._listener.close()
        if self._store is not None:
            self._store.store = None  # the communicator keeps the rest
        self._listener = self._store = None


class Lender:
    """A buffer on this rank's GPU that engines on the same GPU open by CUDA IPC."""

    def __init__(self, size: int) -> None:
        """`size`: bytes of the largest part."""
        from torch.multiprocessing.reductions import reduce_tensor

        self._buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        # Once, as the engines open it once: torch counts the one against the other.
        self._handle = pickle.dumps(reduce_tensor(self._buffer)[1])  # type: ignore[no-untyped-call]
        device = torch.accelerator.current_device_index()
        self._gpu = str(torch.cuda.get_device_properties(device).uuid)

    def lend(self, part: Part, tensors: dict[str, Tensor]) -> Lent:
        pack(tensors, self._buffer)
        torch.cuda.current_stream().synchronize()
        return Lent(part, self._gpu, self._handle)

    def end(self) -> None:
        del self._buffer
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def pack(tensors: dict[str, Tensor], buffer: Tensor) -> None:
    """The bytes of `tensors`, one after the other, to the beginning of `buffer` [bytes]."""
    end = 0
    for tensor in tensors.values():
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        buffer[end : end + flat.numel()].copy_(flat)
        end += flat.numel()


def within(seconds: float, act: Callable[[], T], missing: str) -> T:
    """What `act` comes to. Raises BrokenGroupError(missing) where it is not through by then.

    It goes on in a thread, for nothing can interrupt NCCL but the end of its communicator.
    """
    outcome = in_background("weights", act)
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():  # then it is its own
            raise
        raise BrokenGroupError(missing) from None
