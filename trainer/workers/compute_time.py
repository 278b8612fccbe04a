"""How long this rank computes in its updates, without what it waits for other ranks.

Times on a GPU are those between events in its stream, which nothing waits for. Where another rank
can delay a part of a pass, that part is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from contract.launch.rank_times import RankTime
from trainer.algorithms.batching import MicroBatchLimits
from trainer.cluster import tcp_stream
from trainer.models.zero3 import shape_of
from trainer.types import Rank, Sequences
from trainer.weight_sync import cuda_ipc
from trainer.workers.settings import LearnerSettings

MOST_LAYERS = 32
"""Linear layers that are measured if the passes are not: two events each, some microseconds."""


class Measured(StrEnum):
    """The part of a pass in which a rank waits for no other."""

    PASSES = "passes"
    """Forward and backward: gradients are summed beside them, or after them."""
    FORWARD = "forward"
    """ZeRO 1 and 2 reduce gradients within the backward pass."""
    LAYERS = "layers"
    """Single linear layers. ZeRO-3 gathers weights, and ranks that share samples exchange heads,
    between them."""


def measured(settings: LearnerSettings, rank: Rank) -> Measured:
    if settings.sharding.zero_stage == 3 or rank.sharing > 1:
        return Measured.LAYERS
    return Measured.FORWARD if settings.sharding.zero_stage else Measured.PASSES


@dataclass(frozen=True, slots=True)
class Cost:
    """What samples cost a model, in FLOP of a forward pass.

    The sum is that of PaLM (Chowdhery et al. 2022, appendix B), with the head apart: it computes at
    actions alone.
    """

    token: float
    action: float
    pair: float
    """Of a token that attends to another one."""

    @classmethod
    def of(cls, model: nn.Module, part: Measured) -> Cost:
        embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        find: Callable[[], Any] | None = getattr(model, "get_output_embeddings", None)
        head = getattr(find() if find else None, "weight", None)
        body = sum(
            shape_of(weight).numel()
            for weight in model.parameters()
            if id(weight) not in embeddings and weight is not head
        )
        if part is Measured.LAYERS:  # their cost is that of tokens alone
            return cls(2.0 * body, 0.0, 0.0)
        shape: Any = getattr(model, "backbone", model)
        config = shape.config.get_text_config()
        ahead = 0 if head is None else shape_of(head).numel()
        return cls(2.0 * body, 2.0 * ahead, 4.0 * config.num_hidden_layers * config.hidden_size)

    def work(self, samples: Sequences, *, padded: bool) -> float:
        """Return the FLOP of one pass over the samples."""
        lengths = samples.lengths.astype(float)
        if padded:  # all have the length of the longest one
            lengths[:] = lengths.max(initial=0)
        squares = float((lengths * lengths).sum())
        actions = float(samples.actions.sum())
        return self.token * float(lengths.sum()) + self.action * actions + self.pair * squares


class ComputeTime:
    """Measures one rank of one model."""

    def __init__(
        self, model: nn.Module, limits: MicroBatchLimits, settings: LearnerSettings, rank: Rank
    ) -> None:
        """`model`: after its strategy is made, whose hooks gather weights first."""
        device = next(model.parameters()).device
        self._rank = rank
        self._part = measured(settings, rank)
        self._cost = Cost.of(model, self._part)
        self._padded = not limits.packed
        self._laps: Laps = GpuLaps() if device.type == "cuda" else CpuLaps()
        self._device = device
        self._work = 0.0
        self._in_forward = False
        if self._part is Measured.LAYERS:
            self._watch(model)

    @contextmanager
    def forward(self, samples: Sequences) -> Iterator[None]:
        """Measure the forward pass over the samples."""
        self._work += self._cost.work(samples, padded=self._padded)
        self._in_forward = True
        with self._counted(self._part is not Measured.LAYERS):
            yield
        self._in_forward = False

    @contextmanager
    def backward(self) -> Iterator[None]:
        with self._counted(self._part is Measured.PASSES):
            yield

    def taken(self) -> RankTime:
        """Return what was measured since the last call.

        What the GPU has not computed yet is left out; an update ends with a number from it.
        """
        work, self._work = self._work, 0.0
        on_gpu = self._device.type == "cuda"
        return RankTime(
            rank=self._rank.index,
            address=os.environ.get(tcp_stream.ADDRESS, ""),
            device=device_name(self._device),
            gpu=cuda_ipc.gpu() if on_gpu else "",
            seconds=self._laps.taken(),
            work=work,
        )

    @contextmanager
    def _counted(self, counts: bool) -> Iterator[None]:
        if not counts:
            yield
            return
        self._laps.begin()
        yield
        self._laps.end()

    def _watch(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        for layer in layers[:: max(1, -(-len(layers) // MOST_LAYERS))]:
            layer.register_forward_pre_hook(self._layer_begins)
            layer.register_forward_hook(self._layer_ends)

    def _layer_begins(self, module: nn.Module, inputs: object) -> None:
        if self._in_forward:
            self._laps.begin()

    def _layer_ends(self, module: nn.Module, inputs: object, output: object) -> None:
        if self._in_forward:
            self._laps.end()


class CpuLaps:
    """Sums the time between pairs of moments."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self._seconds += time.perf_counter() - self._began

    def taken(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class GpuLaps:
    """Sums the time between pairs of events in the present stream."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._began: torch.cuda.Event | None = None

    def begin(self) -> None:
        self._began = _event()

    def end(self) -> None:
        assert self._began is not None
        self._pairs.append((self._began, _event()))

    def taken(self) -> float:
        pairs, self._pairs = self._pairs, []
        milliseconds = [begin.elapsed_time(end) for begin, end in pairs if end.query()]
        return float(sum(milliseconds)) / 1000


Laps = CpuLaps | GpuLaps


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def device_name(device: torch.device) -> str:
    """Return what computes: the GPU's model, or the CPU's instructions and number of threads."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
