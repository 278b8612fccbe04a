"""How the ranks of a model find each other: a store on the first one's node, then collectives."""

from __future__ import annotations

import os
from datetime import timedelta

import psutil
import torch
from torch import distributed
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]

from trainer.types import Rank


class RankRendezvous:
    """A store that this process holds for its ranks, on a port that the system chose."""

    def __init__(self, host: str, timeout: float) -> None:
        """`timeout` in seconds."""
        self._store = TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        )
        self.address = (host, self._store.port)


def join(address: tuple[str, int], rank: Rank, own: str, timeout: float) -> None:
    """Set up this process's collectives; none of them waits longer than `timeout` seconds.

    `own` is this node's address in the cluster.
    """
    host, port = address
    limit = timedelta(seconds=timeout)
    if interface := _interface_of(own):  # gloo else asks what the host's name means, often itself
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    _begin(TCPStore(host, port, is_master=False, timeout=limit), rank, limit)


def alone() -> None:
    """Collectives of one rank, for what insists on them."""
    if not distributed.is_initialized():
        _begin(HashStore(), Rank(), timedelta(minutes=1))


def _interface_of(address: str) -> str | None:
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, has in interfaces if address in [a.address for a in has]), None)


def _begin(store: Store, rank: Rank, timeout: timedelta) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(
        backend, store=store, rank=rank.index, world_size=rank.world, timeout=timeout
    )
