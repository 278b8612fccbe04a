"""One rank of an all-reduce between nodes: measures bandwidth and checks the sum."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FIRST_BYTES = 1 << 20
"""The first message. It opens the connections; its time sets the size of timed messages."""
ON_GPUS, ON_CPUS = 1 << 30, 8 << 20
"""Bytes of the largest message: enough for a fabric's peak, within milliseconds."""
SECONDS = 0.1
"""Target seconds of one timed all-reduce. A slow link gets a smaller message."""
ROUNDS = 5
"""Number of timed all-reduces; the fastest counts."""
DISTINCT = 7
"""Ranks contribute numbers from 1 to this one. They are small, because float32 adds whole numbers
exactly only up to 2**24."""


class AllReduceRank:
    """One process of a group."""

    def __init__(self) -> None:
        self._rendezvous: Any = None

    def started(self) -> None:
        """Answers once the process has started."""

    def ready(self) -> None:
        """Load torch, which takes seconds that must not count in a round."""
        import torch.distributed  # noqa: F401

    def meet(self, timeout: float) -> tuple[str, int]:
        """Open a store for a group. Returns its address."""
        import ray

        from trainer.cluster.rendezvous import RankRendezvous

        self._rendezvous = RankRendezvous(ray.util.get_node_ip_address(), timeout)
        address: tuple[str, int] = self._rendezvous.address
        return address

    def all_reduce(
        self, meeting: tuple[str, int], index: int, world: int, timeout: float
    ) -> float | None:
        """Return the bus bandwidth in GB/s; None if a sum is wrong."""
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
    fastest = min(seconds for seconds in times if seconds is not None)
    # The bus bandwidth of nccl-tests: what each link of a ring carries.
    bandwidth: float = 2 * (rank.world - 1) / rank.world * size / fastest / 1e9
    return bandwidth


def _timed(size: int, rank: Any, device: torch.device) -> float | None:
    """Return the seconds of one all-reduce of `size` bytes; None if its sum is wrong."""
    import torch
    import torch.distributed as dist

    values = torch.full((size // 4,), float(_contribution(rank.index)), device=device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    dist.all_reduce(values)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return seconds if bool((values == _sum(rank.world)).all()) else None


def _contribution(index: int) -> int:
    return index % DISTINCT + 1


def _sum(world: int) -> int:
    """Return the sum of the contributions of `world` ranks."""
    rounds, rest = divmod(world, DISTINCT)
    return rounds * DISTINCT * (DISTINCT + 1) // 2 + rest * (rest + 1) // 2
