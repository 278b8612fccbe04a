"""One rank of an all-reduce between nodes: how fast it is, and whether its sum is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FIRST_BYTES = 1 << 20
"""The message that opens the connections, and tells how large the timed ones can be."""
ON_GPUS, ON_CPUS = 1 << 30, 8 << 20
"""Bytes of the largest message: so much brings a fabric near its peak, and costs milliseconds."""
SECONDS = 0.1
"""What one timed all-reduce may take: on a slow line the message is a smaller one."""
ROUNDS = 5
"""Timed all-reduces; the fastest counts."""
DISTINCT = 7
"""Ranks in a row that each bring another number: small ones, as float32 adds up whole numbers
exactly to 2**24 alone."""


class Rank:
    """One process of a group, on the node that Ray has put it on."""

    def __init__(self) -> None:
        self._rendezvous: Any = None

    def up(self) -> None:
        """The process is there."""

    def ready(self) -> None:
        """Torch is there: it takes seconds, which no round is to be charged with."""
        import torch.distributed  # noqa: F401

    def meet(self, timeout: float) -> tuple[str, int]:
        """Open a store where a group can meet."""
        import ray

        from trainer.cluster.rendezvous import RankRendezvous

        self._rendezvous = RankRendezvous(ray.util.get_node_ip_address(), timeout)
        address: tuple[str, int] = self._rendezvous.address
        return address

    def all_reduce(
        self, meeting: tuple[str, int], index: int, world: int, timeout: float
    ) -> float | None:
        """GB/s of bus bandwidth; None where a sum is wrong."""
        import ray
        import torch
        import torch.distributed as dist

        from trainer import types
        from trainer.cluster import rendezvous

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        rank = types.Rank(index, world)
        rendezvous.join(meeting, rank, ray.util.get_node_ip_address(), timeout)
        try:
            return _measured(rank, device)
        finally:
            dist.destroy_process_group()


def _measured(rank: Any, device: torch.device) -> float | None:
    import torch
    import torch.distributed as dist

    most = ON_GPUS if device.type == "cuda" else ON_CPUS
    _timed(FIRST_BYTES, rank, device)
    first = _timed(FIRST_BYTES, rank, device)
    slowest = torch.tensor(first or 0.0, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    size = min(most, max(FIRST_BYTES, int(SECONDS / max(slowest.item(), 1e-6) * FIRST_BYTES)))
    rounds = ROUNDS if slowest.item() < SECONDS else 1
    times = [_timed(size, rank, device) for _ in range(rounds)]
    if None in (first, *times):
        return None
    fastest = min(one for one in times if one is not None)
    # As nccl-tests counts it: what each link carries in a ring.
    bandwidth: float = 2 * (rank.world - 1) / rank.world * size / fastest / 1e9
    return bandwidth


def _timed(size: int, rank: Any, device: torch.device) -> float | None:
    """Seconds of one all-reduce of `size` bytes; None where its sum is wrong."""
    import torch
    import torch.distributed as dist

    values = torch.full((size // 4,), float(_brings(rank.index)), device=device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    dist.all_reduce(values)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return seconds if bool((values == _sum(rank.world)).all()) else None


def _brings(index: int) -> int:
    return index % DISTINCT + 1


def _sum(world: int) -> int:
    """Of what so many ranks bring."""
    rounds, rest = divmod(world, DISTINCT)
    return rounds * DISTINCT * (DISTINCT + 1) // 2 + rest * (rest + 1) // 2
