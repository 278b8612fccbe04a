"""Finds the first arrangement whose estimated memory fits, with the fastest saving that does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from contract.resources import NodeResources
from trainer.cluster import memory_estimate
from trainer.cluster.auto_layout import cost, kernels, savings
from trainer.cluster.auto_layout.arrangements import SIZED, Arrangement, Wish, arrangements
from trainer.cluster.auto_layout.memory_fit import FILLED, MemoryCheck, MemoryUse
from trainer.cluster.auto_layout.savings import Saving
from trainer.cluster.bin_packing import Assignment, pack
from trainer.config import layout
from trainer.config.config import declared_flags
from trainer.config.layout import Layout, Role

if TYPE_CHECKING:
    from trainer.cluster.memory_estimate import SizeOf
    from trainer.cluster.model_size import ModelSize
    from trainer.config.config import Config

MOST_ARRANGEMENTS, MOST_PLACED = 600, 120
"""Arrangements whose room is tried at most, and of those with room, whose memory."""
WORTH = 0.01
"""Share of a step's time that a means of saving memory must be worth."""
BEFORE_BF16 = re.compile(
    r"\b(T4|V100S?|K\d{2}|M\d{1,2}|P\d{1,3}|GTX|TITAN|RTX 20\d\d|Quadro (RTX|[KMGP])\w*)\b",
    re.IGNORECASE,
)
"""GPUs that do not compute in bf16: NVIDIA's before Ampere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout on the nodes, with its estimated memory."""

    arrangement: Arrangement
    config: Config
    found: Assignment
    flags: Mapping[str, Any]
    """The values of the arrangement and of the saving."""
    use: MemoryUse


@dataclass(frozen=True, slots=True)
class _Placed:
    arrangement: Arrangement
    config: Config
    found: Assignment


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    wish: Wish
    check: MemoryCheck

    @classmethod
    def of(
        cls, config: Config, given: Set[str], nodes: Sequence[NodeResources], size_of: SizeOf
    ) -> LayoutSearch:
        lacks_bf16 = any(BEFORE_BF16.search(node.gpu_model) for node in nodes)
        if not given & {"bf16", "param_dtype"} and not lacks_bf16:
            config = config.with_flags({"param_dtype": "bf16"})
        config = config.with_flags(kernels.chosen(config, given))
        roles = [group.role for pool in layout.of(config).pools for group in pool.groups]
        models = sorted({name for role in roles for name in memory_estimate.models(config, role)})
        sizes = {model: size_of(model) for model in models}
        parallel = _engine_sizes(config, given, sizes[config.pretrain], nodes)
        wish = Wish(config=config, given=given, offers=nodes, tensor_parallel=parallel)
        return cls(wish, MemoryCheck(nodes, sizes))

    def best(self) -> Candidate | None:
        """Return the first candidate that fits, else the one that lacks least memory.

        None if no arrangement has room on the nodes.
        """
        least: Candidate | None = None
        for placed, tried in self._tried():
            last = self._candidate(placed, tried[-1])
            least = min(filter(None, (least, last)), key=_lacking)
            if last.use.gpu.filled <= FILLED and (first := self._first(placed, tried)):
                return first
        return least

    def _tried(self) -> Iterator[tuple[_Placed, Sequence[Saving]]]:
        """Yield arrangements with cheap savings; then all of them again with dear ones."""
        found: list[_Placed] = []
        for placed in islice(self._placed(), MOST_PLACED):
            found.append(placed)
            yield placed, self._savings(placed)
        for placed in found:
            if tried := savings.dear(placed.config, placed.found.layout, self.wish.given):
                yield placed, tried

    def without(self, candidate: Candidate, savers: Sequence[str]) -> MemoryUse:
        """Return the memory of a candidate if these flags had their default values."""
        defaults = {name: declared_flags()[name].default for name in savers}
        return self.check.of(candidate.config.with_flags(defaults), candidate.found)

    def _placed(self) -> Iterator[_Placed]:
        """Yields the arrangements that have room on the nodes."""
        given = self.wish.given
        for arrangement in islice(arrangements(self.wish), MOST_ARRANGEMENTS):
            config = self.wish.config.with_flags(arrangement.flags)
            config = layout.settled(config, given | arrangement.flags.keys())
            if any(layout.faults(config)):
                continue
            found = pack(layout.of(config), self.wish.offers)
            if not found.shortfalls:
                yield _Placed(arrangement, _sleeping(config, given, found.layout), found)

    def _savings(self, placed: _Placed) -> Sequence[Saving]:
        """Return the savings to try; one if a model's size is unknown."""
        found = savings.cheap(placed.config, placed.found.layout, self.wish.given)
        if None not in self.check.sizes.values():
            return found
        return found[:1] if self.wish.given & SIZED else found[-1:]

    def _first(self, placed: _Placed, tried: Sequence[Saving]) -> Candidate | None:
        """Return the fastest saving that fits; of equally fast ones the first.

        A means must be worth a hundredth of a step's time, since the estimate is rough.
        """

        def seconds(saving: Saving) -> float:
            config = placed.config.with_flags(saving)
            layout, rates = placed.found.layout, cost.rates_of(self.check.nodes)
            found = cost.of_step(config, layout, self.check.sizes.get, rates)
            means = sum(bool(saving.get(name)) for name in savings.MEANS)
            return found.seconds * (1 + WORTH * means) if found else 0.0

        for saving in sorted(tried, key=seconds):
            made = self._candidate(placed, saving)
            if made.use.fits:
                return made
        return None

    def _candidate(self, placed: _Placed, saving: Saving) -> Candidate:
        config = placed.config.with_flags(saving)
        return Candidate(
            arrangement=placed.arrangement,
            config=config,
            found=placed.found,
            flags={**placed.arrangement.flags, **saving},
            use=self.check.of(config, placed.found),
        )


def _lacking(candidate: Candidate) -> tuple[float, float]:
    """Orders candidates that do not fit: what the GPUs lack counts first."""
    return max(candidate.use.gpu.filled, FILLED), candidate.use.host.filled


def _engine_sizes(
    config: Config, given: Set[str], size: ModelSize | None, nodes: Sequence[NodeResources]
) -> Sequence[int]:
    """Return the numbers of GPUs that one engine can have, fewest first."""
    if "vllm_tensor_parallel_size" in given or not layout.may_be_vllm(config):
        return [layout.engine_slots(config)]
    most = max(node.gpus for node in nodes)
    if size is None or not size.heads:
        return [2**n for n in range(most.bit_length())]
    return [ranks for ranks in range(1, most + 1) if size.splits_over(ranks)]


def _sleeping(config: Config, given: Set[str], made: Layout) -> Config:
    """Return the flags with engines that sleep if they share GPUs with a model that is trained."""
    beside = {group.role for group in made.pool_of(Role.ENGINE).groups}
    shared = beside & {Role.POLICY, Role.CRITIC} and not config.async_train
    if "vllm_enable_sleep" in given or not shared:
        return config
    return config.with_flags({"vllm_enable_sleep": True})
