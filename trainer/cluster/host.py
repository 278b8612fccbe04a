"""The Ray actor that holds a worker of any role."""

from __future__ import annotations

import os
from typing import Any

import ray

from trainer.cluster import tcp_stream
from trainer.cluster.worker_group import build
from trainer.types import Rank


class Host:
    """Made before its worker is, so that others can be told where it is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: Any = None
        self._meeting: Any = None

    def meet(self, timeout: float) -> tuple[str, int]:
        """Where the ranks of this worker's model find each other; asked of the first alone."""
        from trainer.cluster.rendezvous import Meeting

        self._meeting = Meeting(ray.util.get_node_ip_address(), timeout)
        address: tuple[str, int] = self._meeting.address
        return address

    def join(self, address: tuple[str, int], rank: Rank, timeout: float) -> None:
        from trainer.cluster import rendezvous

        rendezvous.join(address, rank, ray.util.get_node_ip_address(), timeout)

    def build(self, actor: str, args: tuple[Any, ...], joined: None = None) -> str:
        """Returns where the worker is. Fails where `joined`, what came of `join`, has failed."""
        address = ray.util.get_node_ip_address()
        os.environ.setdefault(tcp_stream.ADDRESS, address)
        self._worker = build(actor, args)
        return f"node {address}, process {os.getpid()}"

    def call(self, built: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """`built` is what came of `build`: where that failed, so does this, with its error."""
        return getattr(self._worker, method)(*args, **kwargs)

    @ray.method(concurrency_group="behind")  # type: ignore[untyped-decorator]
    def call_behind(self, built: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """The same in a thread of its own."""
        return getattr(self._worker, method)(*args, **kwargs)

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def alive(self) -> None:
        """Answers while the worker computes; not where its process has been stopped."""

    def __repr__(self) -> str:
        return self._name
