"""What the engines are, once it is known what they lie on. Torch-free, Ray-free."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trainer.cluster import memory_estimate
from trainer.cluster.bin_packing import Assignment
from trainer.config import layout

if TYPE_CHECKING:
    from trainer.config.config import Config

NAMES = {"hf": "transformers", "vllm": "vLLM"}


def settled(config: Config, found: Assignment) -> Config:
    """With --rollout_engine said, and on GPUs the share of its memory that an engine takes.

    `auto` is vLLM where there are GPUs and it is installed, and transformers elsewhere: on CPUs
    vLLM takes half a minute to start, and a gigabyte for its cache. Who asks for several GPUs an
    engine means vLLM, installed or not: `trainer.config.installed` says what is lacking.
    """
    kind = config.rollout_engine
    if kind == "auto":
        wanted = find_spec("vllm") or config.vllm_tensor_parallel_size > 1
        kind = "vllm" if found.on_gpus and wanted and layout.is_exact(config) else "hf"
    share = config.vllm_gpu_memory_utilization
    if found.on_gpus:
        share = memory_estimate.engine_share(config, found.layout)
    return replace(config, rollout_engine=kind, vllm_gpu_memory_utilization=share)


def sentence(config: Config) -> str:
    return f"rollouts by {NAMES[config.rollout_engine]}"
