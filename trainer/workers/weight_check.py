"""Silent data corruption: are the bits those that the last update wrote, and equal on all ranks?

A GPU or a memory that gives a wrong bit raises no error (Dixit et al. 2021, "Silent Data
Corruptions at Scale"; Llama 3, section 3.3.4). For each check, a rank reads its memory once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from contract.launch.log_lines import CORRUPTION
from trainer.models.fingerprint import combined, fingerprint
from trainer.types import CorruptedRankError, Rank
from trainer.workers.compute_time import device_name


@dataclass(frozen=True, slots=True)
class Held:
    """The tensors that a rank keeps between two updates."""

    equal: Sequence[Tensor]
    """Every rank has the same, to the bit."""
    own: Sequence[Tensor] = ()
    """This rank's part of what is sharded."""


@dataclass(frozen=True, slots=True)
class Print:
    """What a rank has of the weights that all ranks hold."""

    device: int
    """A digest of what rounds alike: devices of one model, and threads of a CPU."""
    bits: int


class WeightCheck:
    """Checks one rank's tensors in every n-th step."""

    def __init__(self, role: str, rank: Rank, every: int) -> None:
        """`every`: steps between two checks; 0: there is none."""
        self._role, self._rank, self._every = role, rank, every
        self._sealed: tuple[int, int] | None = None
        """Step and fingerprint of the tensors after the newest update."""

    def updated(self, step: int, held: Callable[[], Held]) -> None:
        """Compare with the other ranks after the last update of `step`, and remember the bits.

        All ranks call it. Raises CorruptedRankError on the ranks that differ from the most.
        """
        self._sealed = None
        if not self._every or step % self._every:
            return
        found = held()
        equal = fingerprint(found.equal)
        if found.equal and self._rank.world > 1:
            odd = odd_ones(_of_all_ranks(Print(_device_digest(found.equal[0]), equal), found))
            if self._rank.index in odd:
                others = self._rank.world - len(odd)
                told = (
                    f"its weights differ from those of {others} other ranks after step {step}"
                    if others
                    else f"the ranks' weights differ after step {step}, and none are the most"
                )
                raise corrupted(self._role, self._rank, told)
        self._sealed = step, combined([equal, fingerprint(found.own)])

    def compare(self, held: Callable[[], Held]) -> None:
        """Raise CorruptedRankError if the tensors are not those that the newest update wrote."""
        if self._sealed is None:
            return
        step, bits = self._sealed
        found = held()
        if combined([fingerprint(found.equal), fingerprint(found.own)]) != bits:
            told = f"its memory changed weights or optimizer state that step {step} had written"
            raise corrupted(self._role, self._rank, told)

    def forget(self) -> None:
        """The tensors get other values than an update's."""
        self._sealed = None


def corrupted(role: str, own: Rank, told: str) -> CorruptedRankError:
    """Return the error of this rank, and print it: the line has this node's address in the log.

    If the attempt ends, the launcher evicts that node (FailureClass.GPU_FAULT).
    """
    print(f"{CORRUPTION}: {role}-{own.index}: {told}", flush=True)
    return CorruptedRankError(role, own.index, told)


def odd_ones(prints: Sequence[Print]) -> frozenset[int]:
    """Return the ranks that differ from most ranks with such a device.

    All ranks with the device, if no half of them agree: nothing then says which are right.
    """
    odd: set[int] = set()
    for device in {one.device for one in prints}:
        ranks = [rank for rank, one in enumerate(prints) if one.device == device]
        (bits, count), *others = Counter(prints[rank].bits for rank in ranks).most_common()
        if others:
            has_most = 2 * count > len(ranks)
            odd |= {rank for rank in ranks if not has_most or prints[rank].bits != bits}
    return frozenset(odd)


def _of_all_ranks(own: Print, held: Held) -> list[Print]:
    signed = [value - 2**64 if value >= 2**63 else value for value in (own.device, own.bits)]
    mine = torch.tensor(signed, device=held.equal[0].device)
    found = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(found, mine)
    return [Print(*one.tolist()) for one in found]


def _device_digest(tensor: Tensor) -> int:
    """Return a digest of what decides how sums are rounded: another one rounds otherwise."""
    name = device_name(tensor.device)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
