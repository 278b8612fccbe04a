"""The transformers engine: rollouts on any machine, without vLLM.

It stays beside vLLM because it makes a run on CPUs repeat to the bit, and starts in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainer.algorithms import batching
from trainer.cluster import shared_memory
from trainer.config import architecture
from trainer.config.layout import Role
from trainer.config.options.rollout import SamplingSettings
from trainer.models.fingerprint import fingerprint
from trainer.models.gpu_memory import Peaks
from trainer.models.loading import load_causal_lm, prepare_process
from trainer.models.positions import shape_of
from trainer.models.vision import Vision, vision_of
from trainer.rollout.engine import INCOMPLETE_WEIGHTS, EngineSettings
from trainer.rollout.hf_engine import cache, trial
from trainer.rollout.hf_engine.decode import Decoder, Prompted
from trainer.rollout.hf_engine.partial import PartialRollouts
from trainer.rollout.kept_weights import KeptWeights
from trainer.rollout.tokenizer_io import Texts, TokenRow, limited
from trainer.types import (
    Completion,
    Metrics,
    PartialRollout,
    Request,
    SliceResult,
    UnfitModelError,
)
from trainer.weight_sync import shared_memory as weight_transfer
from trainer.weight_sync.messages import Bucket, Memory


class HFEngine:
    """An Engine on one device.

    Keys and values of `generate` live until the call returns. Those of a partial rollout live until
    it finishes or new weights come."""

    def __init__(self, settings: EngineSettings) -> None:
        device = prepare_process(
            deterministic=settings.deterministic, trust_remote_code=settings.trust_remote_code
        )
        self._peaks = Peaks()
        dtype = torch.bfloat16 if settings.mixed_precision else torch.float32
        loaded = load_causal_lm(settings.model, dtype, longest=settings.longest)
        self._model = loaded.to(device).eval()
        seeing = vision_of(self._model, settings.model)
        if fault := _decoding_fault(self._model, device, seeing, settings.longest):
            raise UnfitModelError(f"--rollout_engine hf cannot decode {settings.model}: {fault}")
        self._shapes = {name: p.shape for name, p in self._model.named_parameters()}
        self._texts = Texts(settings)
        self._stops = self._texts.ends
        self._decoder = Decoder(self._model, self._stops, settings.slots, device, seeing)
        self._inbox = weight_transfer.SharedMemoryReceiver()
        self._arrived: set[str] = set()
        """Parts of the next weights."""
        self._version: int | None = 0
        """None while the weights are incomplete."""
        self._kept = KeptWeights(settings.weight_check_steps, self._prints)
        self._partials: PartialRollouts | None = None
        if settings.vllm.enable_sleep:
            self.sleep()

    def node(self) -> str:
        return shared_memory.node()

    def _prints(self) -> list[int]:
        return [fingerprint(self._model.parameters())]

    def begin(self) -> None:
        self._version = None
        self._kept.forget()
        self._arrived.clear()

    def fetch(self, bucket: Bucket) -> Bucket:
        return self._inbox.fetch(bucket)

    def load(self, bucket: Bucket) -> None:
        self._version = None
        tensors = dict(self._inbox.tensors(bucket))
        weight_transfer.load(self._model, tensors)
        self._arrived |= tensors.keys()

    def commit(self, version: int) -> None:
        if missing := self._shapes.keys() - self._arrived:
            raise RuntimeError(f"version {version} came without {', '.join(sorted(missing)[:3])}")
        self._arrived.clear()
        self._version = version
        self._kept.committed(version)
        if self._partials:
            self._partials = self._partials.with_weights_of(version)

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> list[Completion]:
        if self._version is None:
            raise RuntimeError(INCOMPLETE_WEIGHTS)
        prompts = [
            Prompted(self._texts.tokens(request), self._texts.images(request))
            for request in requests
        ]
        seeds = [request.seeds for request in requests]
        each = [number for number, some in enumerate(seeds) for _ in some]
        limits = [limited(sampling, requests[number]).max_new_tokens for number in each]
        with self._peaks.phase("rollout"):
            written = self._decoder.decode(prompts, seeds, sampling, limits)
            self._kept.compare()
        rows = [
            self._texts.cut(TokenRow.of(*written.row(row), self._version), requests[number])
            for row, number in enumerate(each)
        ]
        return self._texts.completions([list(prompts[n].tokens) for n in each], rows)

    def write(
        self, partials: Sequence[PartialRollout], sampling: SamplingSettings, seconds: float
    ) -> SliceResult:
        if self._version is None:
            raise RuntimeError(INCOMPLETE_WEIGHTS)
        if self._partials is None:
            self._partials = PartialRollouts(self._decoder, self._texts, sampling, self._version)
        self._partials.add(partials)
        with self._peaks.phase("rollout"):
            result = SliceResult(self._partials.go_on(seconds), self._partials.left)
            self._kept.compare()
            return result

    def partials(self) -> list[PartialRollout]:
        return self._partials.partials() if self._partials else []

    def peaks(self) -> Metrics:
        return batching.peak_metrics(Role.ENGINE, self._peaks.taken())

    def sleep(self) -> None:
        self._version = None
        self._kept.forget()
        self._arrived.clear()
        for parameter in self._model.parameters():
            parameter.data = parameter.data.new_empty(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._peaks.now("asleep")

    def wake(self, memory: Memory) -> None:
        if memory == "weights":
            for name, parameter in self._model.named_parameters():
                if parameter.shape != self._shapes[name]:
                    parameter.data = parameter.data.new_empty(self._shapes[name])


def _decoding_fault(
    model: Any, device: torch.device, vision: Vision | None, longest: int
) -> str | None:
    """Return why this engine cannot decode `model`; None if it can."""
    if fault := architecture.decoding_fault(shape_of(model.config), longest):
        return fault
    if model._is_stateful or not cache.holds(model.config):
        return f"a layer of {type(model).__name__} keeps a state that is not keys and values"
    return trial.fault(model, device, vision, longest)
