"""A rollout engine that generates with vLLM.

With one GPU, or none, vLLM's core and its worker run in the process of this actor. So no message
passes between processes for each token, and the end of the actor ends everything. With tensor
parallelism vLLM runs each rank in a process of its own.

On GPUs vLLM begins a step before it reads the last one's tokens (`async_scheduling`, its default).
So its core needs no process of its own. Outputs take 3.0 of the 14.3 CPU ms beside the model of a
step of 512 requests (`bench.rollout_gpu`), and in the core's process their encoding would take 2.4
ms (`bench.alternatives outputs`).
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig

from contract.options import ended
from trainer.algorithms import batching
from trainer.algorithms.seeds import derive
from trainer.cluster import shared_memory
from trainer.config.layout import Role
from trainer.config.options.rollout import SamplingSettings
from trainer.models import pretrained
from trainer.models.loading import prepare_process
from trainer.rollout.engine import INCOMPLETE_WEIGHTS, EngineSettings
from trainer.rollout.kept_weights import KeptWeights
from trainer.rollout.tokenizer_io import Texts, limited
from trainer.rollout.vllm_drafts import PartialRollouts
from trainer.types import (
    Completion,
    EngineFailedError,
    Metrics,
    PartialRollout,
    Request,
    Seed,
    SliceResult,
    TrainingError,
)
from trainer.weight_sync.messages import Bucket, BucketSpec, GroupRank, IpcHandle, Member, Memory
from trainer.weight_sync.shared_memory import SharedMemoryReceiver

CPU_CACHE_BYTES = 1 << 30
"""Cache of keys and values if no fraction of the memory is set: vLLM would take nearly all."""
DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # Ray assigns the CPU cores
    # It knows no seeds, so it would only be tried at the start: for that it is compiled, with nvcc.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


class VLLMEngine:
    """An Engine on one GPU or several, or on CPUs."""

    def __init__(self, settings: EngineSettings) -> None:
        prepare_process(trust_remote_code=settings.trust_remote_code)
        _prepare_environment()
        from vllm import LLM

        from trainer.weight_sync.vllm_receiver import VllmReceiver

        _check_kernels()
        self._texts = Texts(settings)
        self._stops = self._texts.ends
        own = settings.vllm
        try:
            self._llm = LLM(**arguments(settings), **_transfer(own.sync_backend))
        except (ValueError, RuntimeError, AssertionError, NotImplementedError) as error:
            raise TrainingError(_explained(settings, error)) from error
        self._receiver = VllmReceiver(self._llm, own.sync_backend, own.tensor_parallel_size)
        self._inbox = SharedMemoryReceiver()
        self._partials = PartialRollouts(self._llm.llm_engine, self._texts)
        self._kept = KeptWeights(settings.weight_check_steps, self._prints)
        self._sees_images = settings.max_images is not None
        self._sampling: SamplingSettings | None = None
        """Sampling of the partial rollouts."""
        self._withdrawn: list[PartialRollout] = []
        """Rollouts that wait during a weight update or a call of `generate`."""
        self._asleep: dict[str, int] = {}
        """Bytes of the fullest worker while it slept; empty if none has since `peaks`."""
        self._most("peak_memory")  # begin to measure: what loading took is no part of rollouts
        if own.enable_sleep:
            self.sleep()

    def node(self) -> str:
        return shared_memory.node()

    def fetch(self, bucket: Bucket) -> Bucket:
        return self._inbox.fetch(bucket)

    def member(self) -> Member:
        return self._receiver.member

    def join(self, rank: GroupRank) -> None:
        with _failures():
            self._receiver.join(rank)

    def _prints(self) -> list[int]:
        with _failures():
            prints: list[int] = self._llm.collective_rpc("weights_fingerprint")
        return prints

    def begin(self) -> None:
        self._kept.forget()
        with _failures():
            if not self._receiver.under_way:
                self._withdraw()
            self._receiver.begin()

    def load(self, bucket: Bucket) -> None:
        with _failures():
            self._receiver.load(bucket)

    def receive(self, bucket: BucketSpec) -> None:
        with _failures():
            self._receiver.receive(bucket)

    def gpus(self) -> list[str]:
        with _failures():
            return self._receiver.gpus()

    def borrow(self, *lent: IpcHandle) -> None:
        with _failures():
            self._receiver.borrow(lent)

    def commit(self, version: int) -> None:
        with _failures():
            self._receiver.commit(version)
            if self._sees_images:  # features of the old weights
                self._llm.llm_engine.reset_encoder_cache()
        self._kept.committed(version)
        self._go_on()

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> list[Completion]:
        self._ready()
        self._withdraw()  # else vLLM would finish the partial rollouts and drop the results
        partials = [
            PartialRollout((number, place), request.text, seed, context=request.context)
            for number, request in enumerate(requests)
            for place, seed in enumerate(request.seeds)
        ]
        self._add(partials, sampling)
        with _failures():
            ended = {r.key: r.completion for r in self._partials.go_on(math.inf)}
        self._kept.compare()
        self._go_on()
        return [ended[partial.key] for partial in partials]

    def write(
        self, partials: Sequence[PartialRollout], sampling: SamplingSettings, seconds: float
    ) -> SliceResult:
        self._ready()
        self._sampling = sampling
        self._add(partials, sampling)
        with _failures():
            result = SliceResult(self._partials.go_on(seconds), self._partials.left)
        self._kept.compare()
        return result

    def _ready(self) -> None:
        if self._receiver.under_way:
            raise RuntimeError(INCOMPLETE_WEIGHTS)

    def partials(self) -> list[PartialRollout]:
        return [*self._withdrawn, *self._partials.partials()]

    def _withdraw(self) -> None:
        self._withdrawn = self._partials.withdraw()

    def _go_on(self) -> None:
        if self._withdrawn:
            assert self._sampling is not None
            self._add(self._withdrawn, self._sampling)
        self._withdrawn = []

    def _add(self, partials: Sequence[PartialRollout], sampling: SamplingSettings) -> None:
        for partial in partials:
            written = len(partial.tokens)
            # vLLM restarts a seed's random numbers, so the rest of a rollout gets another seed.
            seed = partial.seed
            if written and seed is not None:
                seed = derive(seed, "rest", written)
            whole = limited(sampling, partial)
            rest = replace(whole, max_new_tokens=whole.max_new_tokens - written)
            self._partials.add(partial, self._params(seed, rest), self._receiver.version)

    def _params(self, seed: Seed, sampling: SamplingSettings) -> Any:
        from vllm import SamplingParams

        temperature = 0.0 if seed is None else sampling.temperature
        return SamplingParams(
            seed=seed,
            temperature=temperature,
            top_p=sampling.top_p if temperature else 1.0,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=self._stops,
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            detokenize=False,
        )

    def peaks(self) -> Metrics:
        try:
            held = {"rollout": self._most("peak_memory"), **self._asleep}
        except EngineFailedError:  # the next call says it
            return {}
        self._asleep = {}
        return batching.peak_metrics(Role.ENGINE, held)

    def _most(self, method: str) -> int:
        """Return what `method` of the fullest worker says. A worker has its memory, not vLLM."""
        with _failures():
            of_each: list[int] = self._llm.collective_rpc(method)
        return max(of_each)

    def sleep(self) -> None:
        self._kept.forget()
        with _failures():
            self._llm.sleep(level=2)
        self._asleep = {"asleep": self._most("memory_asleep")}

    def wake(self, memory: Memory) -> None:
        with _failures():
            self._llm.wake_up([{"weights": "weights", "cache": "kv_cache"}[memory]])


def arguments(settings: EngineSettings) -> dict[str, Any]:
    """Return the arguments of vLLM's LLM, without those of weight updates."""
    own = settings.vllm
    on_gpu = not _on_cpus()
    result: dict[str, Any] = {
        "model": settings.model,
        "trust_remote_code": settings.trust_remote_code,
        "skip_tokenizer_init": settings.max_images is None,  # else the image processor has it
        "generation_config": "vllm",  # ignore the sampling defaults of the model
        "dtype": "bfloat16" if settings.mixed_precision else "float32",
        "max_model_len": settings.longest,
        "tensor_parallel_size": own.tensor_parallel_size,
        "distributed_executor_backend": _executor(own.tensor_parallel_size),
        "enable_prefix_caching": own.enable_prefix_caching,
        "enforce_eager": own.enforce_eager or not _compiles(),
        "enable_sleep_mode": own.enable_sleep and on_gpu,
        # Needed: after the temperature, before top_p. Each mode is exact if the other is 1.
        "logprobs_mode": "processed_logprobs" if settings.sampling.top_p == 1 else "raw_logprobs",
    }
    if settings.mixed_precision and own.head_dtype == "fp32":  # as the trainer's head
        result["hf_overrides"] = {"head_dtype": "float32"}
    if settings.max_images is not None:
        most = {"image": settings.max_images} if settings.max_images else {}
        result["limit_mm_per_prompt"] = {**most, "video": 0}
    if _must_compile_attention() and not _has_latent_attention(settings.model):
        result["attention_backend"] = "FLASH_ATTN"  # vLLM's second choice
    if own.gpu_memory_utilization is not None:
        result["gpu_memory_utilization"] = own.gpu_memory_utilization
    elif not on_gpu and not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        result["kv_cache_memory_bytes"] = CPU_CACHE_BYTES
    return result


def _must_compile_attention() -> bool:
    """Return whether vLLM's first choice, FlashInfer's on B200, lacks the nvcc that compiles it.

    vLLM looks for nvcc before it uses other parts of FlashInfer, but not before this one.
    """
    from vllm.platforms import current_platform

    family = current_platform.is_cuda() and current_platform.is_device_capability_family(100)
    return bool(family) and shutil.which("nvcc") is None


def _has_latent_attention(model: str) -> bool:
    """Return whether it is DeepSeek's, for which vLLM has other kernels."""
    return hasattr(pretrained.load(AutoConfig, model).get_text_config(), "kv_lora_rank")


def _executor(ranks: int) -> str:
    """Return vLLM's executor for its ranks: Ray if a placement group reserves their GPUs."""
    if ranks == 1:
        return "uni"
    return "ray" if "VLLM_RAY_BUNDLE_INDICES" in os.environ else "mp"


def _transfer(backend: str) -> dict[str, Any]:
    from vllm.config import WeightTransferConfig

    from trainer.weight_sync.vllm_shared_memory import EXTENSION

    return {
        "weight_transfer_config": WeightTransferConfig(backend=backend),
        "worker_extension_cls": EXTENSION,
    }


def _on_cpus() -> bool:
    """Return whether vLLM computes on CPUs, judged by its build and the machine's GPUs.

    torch cannot tell: in the parent of tensor parallel ranks it sees no GPU.
    """
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _compiles() -> bool:
    """Return whether torch can compile: on CPUs it needs g++, which images leave out."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None or not _on_cpus()


def _prepare_environment() -> None:
    """Set vLLM's variables. Call it before vLLM is imported, because vLLM reads them then."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "://" in os.environ.get("VLLM_PORT", ""):  # of a Kubernetes service with the name vllm
        del os.environ["VLLM_PORT"]
    if not _compiles():  # parts of vLLM are compiled even if its models run eagerly
        os.environ["TORCHDYNAMO_DISABLE"] = "1"


def _check_kernels() -> None:
    """Raise TrainingError if the CPU kernels cannot be loaded: vLLM only warns, and fails later."""
    if _on_cpus() and not hasattr(torch.ops._C, "init_cpu_memory_env"):
        raise TrainingError(
            "vLLM's kernels for CPUs cannot be loaded. They need libnuma: on Debian and Ubuntu "
            "`apt-get install libnuma1`; --rollout_engine hf decodes without them"
        )


FATAL = (RuntimeError, TimeoutError, AssertionError)
"""What vLLM raises if a GPU or a rank fails, or if sleep and wake-up do: torch's errors are among
them."""


@contextmanager
def _failures() -> Iterator[None]:
    """Raise EngineFailedError for errors that end vLLM here, or in the process of a rank."""
    try:
        yield
    except TrainingError:
        raise
    except FATAL as error:
        raise EngineFailedError(f"vLLM ended: {' '.join(str(error).split())}") from error


def _explained(settings: EngineSettings, error: Exception) -> str:
    from vllm import __version__

    said = " ".join(str(error).split())
    return (
        f"vLLM {__version__} cannot run {settings.model}: {ended(said)} If vLLM does not know the "
        "model, --rollout_engine hf decodes with transformers"
    )
