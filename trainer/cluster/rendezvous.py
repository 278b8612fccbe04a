"""The rendezvous of a model's ranks: a store on rank 0's node, then collectives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]

from trainer.cluster import gloo_interface
from trainer.types import Rank


class RankRendezvous:
    """A store in rank 0's process, on a free port."""

    def __init__(self, host: str, timeout: float) -> None:
        """`timeout`: seconds."""
        self._store = TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        )
        self.address = (host, self._store.port)


def join(address: tuple[str, int], rank: Rank, own: str, timeout: float) -> None:
    """Set up this process's collectives, with a timeout of `timeout` seconds each.

    `own`: this node's address in the cluster.
    """
    host, port = address
    limit = timedelta(seconds=timeout)
    gloo_interface.choose(os.environ, own)
    _begin(TCPStore(host, port, is_master=False, timeout=limit), rank, limit)


def alone() -> None:
    """Set up collectives of one rank, for libraries that require them."""
    if not distributed.is_initialized():
        _begin(HashStore(), Rank(), timedelta(minutes=1))


def largest_of_ranks(counts: Sequence[int]) -> list[int]:
    """Return the maximum over all ranks of each count. All ranks must call it."""
    found = torch.tensor(counts, dtype=torch.int64)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    return [int(count) for count in found]


def _begin(store: Store, rank: Rank, timeout: timedelta) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(
        backend, store=store, rank=rank.index, world_size=rank.world, timeout=timeout
    )
