"""The Ray actor that holds a worker; `ray_worker_group` says why a worker starts in two levels."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from contract.launch import collectives, rank_standing
from contract.launch.collectives import Standing
from trainer.cluster import deepspeed_notice, tcp_stream
from trainer.cluster.calls import fetched
from trainer.cluster.imports import without_collections
from trainer.cluster.worker_group import build, load
from trainer.types import Place, Rank


class WorkerHost:
    """The Ray actor that holds a worker of any role."""

    def __init__(self, name: str) -> None:
        deepspeed_notice.leave_out()
        self._name = name
        self._worker: Any = None
        self._thread: int | None = None
        """The thread in which the worker computes."""
        self._rendezvous: Any = None

    def load(self, actor: str) -> None:
        """Import the worker's class. Its errors are also those of `build`, which reports them."""
        load(actor)

    def meet(self, timeout: float) -> tuple[str, int]:
        """Return the address at which the ranks of a model find each other. For rank 0 only."""
        with without_collections():
            from trainer.cluster.rendezvous import RankRendezvous
        self._rendezvous = RankRendezvous(ray.util.get_node_ip_address(), timeout)
        address: tuple[str, int] = self._rendezvous.address
        return address

    def join(self, address: tuple[str, int], rank: Rank, timeout: float) -> None:
        with without_collections():
            from trainer.cluster import rendezvous
        rendezvous.join(address, rank, ray.util.get_node_ip_address(), timeout)

    def build(self, actor: str, args: tuple[Any, ...], before: Place | None = None) -> Place:
        """Build the worker. Returns its node and process.

        `before`: the result of `join`, or of `build` of the worker before in the same place.
        """
        address = ray.util.get_node_ip_address()
        os.environ.setdefault(tcp_stream.ADDRESS, address)
        self._thread = threading.get_ident()
        self._worker = build(actor, args)
        return _own_place(address)

    def call(self, built: Place, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the worker. `built`: the result of `build`; Ray fails the call if `build` failed."""
        self._thread = threading.get_ident()
        return getattr(self._worker, method)(*map(fetched, args), **kwargs)

    def call_after(
        self, built: Place, earlier: Sequence[Any], method: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the worker once the calls with the references `earlier` have ended."""
        if earlier:
            ray.wait([*earlier], num_returns=len(earlier), fetch_local=False)
        return self.call(built, method, *args, **kwargs)

    def call_keeping(
        self, built: Place, earlier: Sequence[Any], method: str, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Call the worker. Returns None for the driver, and each item of the result by itself."""
        return None, *self.call_after(built, earlier, method, *args, **kwargs)

    @ray.method(concurrency_group="background")  # type: ignore[untyped-decorator]
    def call_background(self, built: Place, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the worker in another thread than `call`."""
        return getattr(self._worker, method)(*args, **kwargs)

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def alive(self) -> None:
        """Answers while the worker computes. A stopped process does not answer."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def standing(self) -> Standing:
        """Return where the worker is in its code, and among the collectives of its ranks.

        A process without torch has no collectives. It is not imported for this.
        """
        records = [record.encode() for record in rank_standing.records()]
        return collectives.joint(records, time.time(), rank_standing.place(self._thread))

    def __repr__(self) -> str:
        return self._name


def _own_place(address: str) -> Place:
    """Return this process's node, GPUs and number."""
    name = os.environ.get("ROLLCALL_NODE_NAME", "")
    node = f"{name} at {address}" if name else address
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    gpu = f", GPU {'+'.join(gpus)}" if gpus else ""
    return Place(name or address, f"node {node}{gpu}, process {os.getpid()}")
