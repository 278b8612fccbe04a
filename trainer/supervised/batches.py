"""How a step's samples are split over ranks and passes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from contract.options import Fault
from trainer.supervised.options import StageFlags


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one rank for one optimizer step."""

    samples: int
    """Of each pass."""
    count: int


def passes(flags: StageFlags, largest: int, world: int) -> Passes:
    """Return the passes of a rank, of at most `largest` samples unless a flag gives their number.

    The batch must have no `faults` on so many ranks.
    """
    share = flags.train_batch_size // world
    samples = flags.micro_train_batch_size or max(
        size for size in range(1, min(share, largest) + 1) if share % size == 0
    )
    return Passes(samples, share // samples)


def faults(flags: StageFlags, world: int) -> Iterator[Fault]:
    """Yield a fault if a step's samples cannot be split equally over the ranks and their passes."""
    batch, micro = flags.train_batch_size, flags.micro_train_batch_size or 1
    if batch % (micro * world) == 0:
        return
    each = f" x {world} ranks" if world > 1 else ""
    if flags.micro_train_batch_size is None:
        name, value, problem = "--train_batch_size", batch, f"is not a multiple of {world} ranks"
    else:
        name, value = "--micro_train_batch_size", micro
        problem = f"{micro}{each} does not divide train_batch_size {batch}"
    nearest = max(1, round(batch / (micro * world))) * micro * world
    yield Fault(name, str(value), problem, f"--train_batch_size {nearest} would do")
