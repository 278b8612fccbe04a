"""The policy's side of the NCCL backend: a broadcast from its first rank to all engines' GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib import import_module
from socket import socket
from typing import Any, TypeVar

import torch
from torch import Tensor

from contract.background import in_background
from trainer.cluster import tcp_stream
from trainer.types import BrokenGroupError, TrainingError
from trainer.weight_sync import shared_memory
from trainer.weight_sync.messages import GroupRendezvous, Member

T = TypeVar("T")

PYNCCL = "vllm.distributed.device_communicators.pynccl"


class NcclSender:
    """The first rank's place in the group of all GPUs of all engines."""

    def __init__(self, port: int) -> None:
        """`port` of this node, where the group meets; 0 for one that is free."""
        self._port = port
        self._listener: socket | None = None
        self._meeting: GroupRendezvous | None = None
        self._store: Any = None
        """vLLM's StatelessProcessGroup, in which the group meets."""
        self._group: Any = None
        """vLLM's PyNcclCommunicator."""

    def meet(self, members: tuple[Member, ...]) -> GroupRendezvous | None:
        """None where the group is one of these already. Raises TrainingError for a taken port."""
        if self._group and self._meeting and self._meeting.members == members:
            return None
        self._leave()
        host = os.environ.get(tcp_stream.ADDRESS, "127.0.0.1")
        self._listener = tcp_stream.listening(host, self._port)
        import_module(PYNCCL)  # it takes seconds, for which nobody should wait at the meeting
        self._meeting = GroupRendezvous(host, self._listener.getsockname()[1], members)
        return self._meeting

    def gather(self, seconds: float) -> None:
        """Wait for all members. Raises BrokenGroupError, TrainingError if there is no NCCL."""
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
        """Send to all of the group. Raises BrokenGroupError if one does not take it in time."""
        if self._group is None:
            raise BrokenGroupError("the NCCL group of the weight sync is broken")
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        torch.cuda.current_stream().synchronize()  # the producer reads on streams of its own

        def produce() -> None:
            packed_nccl_broadcast_producer(
                iterator=iter(tensors.items()),
                group=self._group,
                src=0,
                post_iter_func=lambda item: item[1],
                buffer_size_bytes=shared_memory.BUCKET_BYTES,
            )

        try:
            within(seconds, produce, f"a bucket of weights was not taken within {seconds:g} s")
        except RuntimeError as error:
            self._leave()
            if isinstance(error, TrainingError):
                raise
            said = " ".join(str(error).split())
            raise BrokenGroupError(f"a bucket of weights was not sent: {said}") from error

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


def within(seconds: float, act: Callable[[], T], missing: str) -> T:
    """Return the result of `act`. Raises BrokenGroupError(missing) after `seconds`.

    `act` then continues in its thread: only the end of its communicator interrupts NCCL.
    """
    outcome = in_background("weights", act)
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():  # the error is that of `act`
            raise
        raise BrokenGroupError(missing) from None
