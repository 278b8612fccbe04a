"""Is a loss or a gradient wrong because of the data, or because of a rank that computes wrongly?

A pass is a function of weights, samples and seed, and all ranks have equal weights. So ranks repeat
a suspicious update's passes, each those of other ranks too, and compare what they computed.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, distributed, nn

from trainer.types import CorruptedRankError, LostWorkerError, Rank, TrainingError
from trainer.workers.weight_check import corrupted

B = TypeVar("B")
KNOWN, NEWEST = 8, 32
"""A spike is known after so many updates; so many are remembered."""
SPIKE = 20.0
"""A spike is larger than the largest of the newest, times this."""
SAME = 1e-3
"""Relative difference below which two results are the same: devices may round otherwise."""
OPINIONS = 3
"""Ranks that compute the same passes: two of three are right."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a rank computed from the passes of one update."""

    loss: float
    """Sum of the magnitudes of the passes' losses."""
    norm: float = 0.0
    """Sum of the norms of their gradients; 0 if ranks do not compute it."""

    def agrees(self, other: Result) -> bool:
        return _same(self.loss, other.loss) and _same(self.norm, other.norm)


def _same(one: float, other: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return abs(one - other) <= SAME * max(abs(one), abs(other))


@dataclass(slots=True)
class Spikes:
    """Notices values that are not finite, or far larger than those before. Equal on all ranks."""

    _newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def has(self, value: float) -> bool:
        """Return whether `value` is suspicious; one that is not is remembered."""
        if not math.isfinite(value):
            return True
        if len(self._newest) >= KNOWN and value > SPIKE * max(self._newest):
            return True
        self._newest.append(value)
        return False

    def accept(self, value: float) -> None:
        """Remember a value that the data have made."""
        if math.isfinite(value):
            self._newest.append(value)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which ranks computed wrongly, if any."""

    bad: tuple[int, ...] = ()
    told: str = ""
    """What was found, in a sentence without a subject for a bad rank."""


def judge(first: Sequence[Result], again: Sequence[Sequence[Result]], step: int = 1) -> Judgement:
    """Return which ranks computed wrongly.

    `first`: what each rank computed from its own passes in the update. `again[c][k]`: what rank
    c then computed from those of rank c + k × `step`; k = 0 are its own.
    """
    world, votes = len(first), Counter[int]()
    against: dict[int, tuple[int, int]] = {}
    """Rank → the rank whose samples they were, and one that computed something else from them."""
    split: set[int] = set()
    for owner in range(world):
        who = [(owner - k * step) % world for k in range(len(again[0]))]
        results = {rank: again[rank][k] for k, rank in enumerate(who)}
        for rank, result in results.items():
            others = [other for other in results if not result.agrees(results[other])]
            if 2 * len(others) > len(results):
                votes[rank] += 1
                against[rank] = owner, others[0]
            elif others:
                split.add(rank)
    if votes:
        rank = max(votes, key=lambda one: (votes[one], -one))
        owner, other = against[rank]
        told = f"computes another loss or gradient from rank {owner}'s samples than rank {other}"
        return Judgement((rank,), f"it {told} does")
    changed = tuple(
        rank for rank in range(world) if not _same(first[rank].loss, again[rank][0].loss)
    )
    if changed:
        return Judgement(changed, "it computes another loss from the same samples the second time")
    if split:
        odd = [rank for rank in sorted(split) if not _finite(again[rank])]
        suspects = odd if odd and len(odd) < len(split) else sorted(split)
        bad = tuple(suspects)
        peer = "the other rank" if len(bad) == 1 else "each other"
        return Judgement(bad, f"from the same samples it computes another loss than {peer}")
    told = "another rank" if len(again[0]) > 1 else "the same rank"
    return Judgement(told=f"the data or the learning rate make it: it repeats on {told}")


def _finite(results: Iterable[Result]) -> bool:
    return all(math.isfinite(one.loss) and math.isfinite(one.norm) for one in results)


@dataclass(frozen=True, slots=True)
class Update(Generic[B]):
    """An update's passes, before the weights change."""

    batches: list[B]
    loss_of: Callable[[B], Tensor]
    random: list[Tensor]
    """The states of the random generators before the first pass."""
    losses: list[float]
    """Of the passes, as they were computed first."""

    def first(self) -> Update[B]:
        """Return the first pass alone."""
        return replace(self, batches=self.batches[:1], losses=self.losses[:1])

    @property
    def result(self) -> Result:
        return Result(math.fsum(map(abs, self.losses)))


class PassCheck(Generic[B]):
    """Compares the ranks' passes, on suspicion and in every n-th step."""

    def __init__(self, role: str, rank: Rank, weights: list[nn.Parameter]) -> None:
        """`weights`: the tensors of whose gradients ranks compare the norm; none: of no gradient.

        `rank.sharing` ranks share each sample's passes, and so get those of another such group.
        """
        self._role, self._rank, self._weights = role, rank, weights
        self._losses, self._norms = Spikes(), Spikes()

    def losses(self, update: Update[B]) -> None:
        """Look at the losses of an update before it is made. All ranks call it.

        Raises CorruptedRankError on all ranks if one computes wrongly, LostWorkerError if nobody
        can say which, TrainingError if a loss is not finite and the data make it so.
        """
        largest = worst(of_all(update.result.loss, self._rank))
        if not self._losses.has(largest):
            return
        what = f"the {self._role}'s loss is {largest:.3g}"
        self._explain(update, what, largest, is_norm=False)
        self._losses.accept(largest)

    def norm(self, update: Update[B], norm: float) -> None:
        """Look at the norm of all ranks' gradient before the update is made, like `losses`."""
        if not self._norms.has(norm):
            return
        if self._weights:
            self._explain(update, f"the gradient's norm is {norm:.3g}", norm, is_norm=True)
        self._norms.accept(norm)

    def compare(self, update: Update[B], what: str) -> tuple[Judgement, list[Result]]:
        """Repeat the update's passes, on other ranks too. Returns who is right, and own results.

        Raises CorruptedRankError on all ranks if one computes wrongly.
        """
        groups = self._rank.world // self._rank.sharing
        again = [self._computed(update, k) for k in range(min(OPINIONS, groups))]
        first, all_again = gathered(update.result, self._rank), gathered(again, self._rank)
        found = judge(first, all_again, self._rank.sharing)
        if found.bad:
            told = found.told if len(found.bad) == 1 else f"{found.told} (ranks {found.bad})"
            told = f"{what}; {told}"
            if self._rank.index in found.bad:
                corrupted(self._role, self._rank, told)
            raise CorruptedRankError(self._role, found.bad[0], told)
        return found, [results[0] for results in all_again]

    def _explain(self, update: Update[B], what: str, value: float, *, is_norm: bool) -> None:
        """Say what makes `value`, if no rank computes wrongly.

        Raises LostWorkerError for the role if it does not repeat, TrainingError if it repeats and
        is not finite.
        """
        found, again = self.compare(update, what)
        most = math.fsum(one.norm if is_norm else one.loss for one in again)
        if _finite(again) and not value <= (1 + SAME) * most:
            told = "it does not repeat: a rank or the network changed a number once"
            raise LostWorkerError(f"{what}; {told}", self._role)
        if not math.isfinite(value):
            raise TrainingError(f"{what}: {found.told}")
        if self._rank.leads:
            print(f"{what}: {found.told}", flush=True)

    def _computed(self, update: Update[B], groups: int) -> Result:
        """Return what this rank computes from the passes of the rank so many groups further."""
        batches, random = update.batches, update.random
        if shift := groups * self._rank.sharing:
            batches, random = exchanged((batches, random), shift, self._rank)
        losses, norm, weights = [], 0.0, self._weights
        with generators(random), torch.set_grad_enabled(bool(weights)):
            for batch in batches:
                loss = update.loss_of(batch)
                losses.append(abs(float(loss.detach())))
                if weights:
                    found = torch.autograd.grad(loss, weights, allow_unused=True)
                    norm += float(nn.utils.get_total_norm([g for g in found if g is not None]))
        return Result(math.fsum(losses), norm)


def worst(values: Sequence[float]) -> float:
    """Return a value that is not finite, else the largest. `max` passes over one that is none."""
    return next((value for value in values if not math.isfinite(value)), max(values))


def random_states() -> list[Tensor]:
    """Return the states of the random generators that a pass draws from."""
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *cuda]


@contextmanager
def generators(states: list[Tensor]) -> Iterator[None]:
    """Let the block draw as from these states, and all after it as if the block had not run."""
    before = random_states()
    try:
        _set(states)
        yield
    finally:
        _set(before)


def _set(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def of_all(value: float, rank: Rank) -> list[float]:
    """Return the value of each rank: 8 bytes are sent to each."""
    if rank.world == 1:
        return [value]
    own = torch.tensor([value], dtype=torch.float64)
    found = [torch.empty_like(own) for _ in range(rank.world)]
    distributed.all_gather(found, own)
    return [float(one) for one in found]


def gathered(value: Any, rank: Rank) -> list[Any]:
    """Return the object of each rank."""
    if rank.world == 1:
        return [value]
    found: list[Any] = [None] * rank.world
    distributed.all_gather_object(found, value)
    return found


def exchanged(value: Any, shift: int, rank: Rank) -> Any:
    """Return the object of the rank `shift` further, and give this rank's to the one before."""
    content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sizes = gathered(len(content), rank)
    source, target = (rank.index + shift) % rank.world, (rank.index - shift) % rank.world
    received = torch.empty(sizes[source], dtype=torch.uint8)
    sent = distributed.isend(content, target)
    distributed.recv(received, source)
    if sent is not None:
        sent.wait()
    return pickle.loads(received.numpy().tobytes())
