"""What a vLLM engine is started with, by the platform that vLLM finds, not by what torch sees."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING

from trainer.config.options.parallelism import VLLMSettings
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout import vllm_engine as engine
from trainer.rollout import vllm_plugin
from trainer.rollout.engine import EngineSettings
from trainer.types import EngineFailedError, TrainingError

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120)]

SETTINGS = EngineSettings(
    model="model",
    add_special_tokens=True,
    prompt_max_len=200,
    sampling=SamplingSettings(max_new_tokens=20),
    mixed_precision=True,
    slots=64,
    vllm=VLLMSettings(tensor_parallel_size=2, enable_sleep=True),
)


class Platform:
    def __init__(self, *, cpu: bool, family: int = 90) -> None:
        self._cpu = cpu
        self._family = family

    def is_cpu(self) -> bool:
        return self._cpu

    def is_cuda(self) -> bool:
        return not self._cpu

    def is_device_capability_family(self, capability: int) -> bool:
        return self._family == capability


@pytest.fixture(autouse=True)
def _no_gpu_seen_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As it is in the parent of tensor parallel ranks."""
    before = dict(os.environ)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    yield
    os.environ.clear()
    os.environ.update(before)


def on(monkeypatch: pytest.MonkeyPatch, *, cpu: bool, family: int = 90) -> None:
    """vLLM finds CPUs alone, or GPUs; its build has no kernels for CPUs."""
    import vllm.platforms

    monkeypatch.setattr(vllm.platforms, "current_platform", Platform(cpu=cpu, family=family))
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace())


def test_the_parent_of_tensor_parallel_ranks_starts_as_on_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm import envs

    on(monkeypatch, cpu=False)
    engine._check_kernels()
    engine._prepare_environment()
    assert "TORCHDYNAMO_DISABLE" not in os.environ
    assert not envs.VLLM_USE_FLASHINFER_SAMPLER  # the sampler has no seeds, and needs nvcc
    given = engine.arguments(SETTINGS)
    assert given["enable_sleep_mode"] is True
    assert given["enforce_eager"] is False
    assert not {"kv_cache_memory_bytes", "attention_backend"} & given.keys()
    assert given["hf_overrides"] == {"head_dtype": "float32"}
    assert "hf_overrides" not in engine.arguments(replace(SETTINGS, mixed_precision=False))


def test_on_cpus_it_neither_sleeps_nor_compiles_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(monkeypatch, cpu=True)
    with pytest.raises(TrainingError, match="libnuma"):
        engine._check_kernels()
    engine._prepare_environment()
    assert os.environ["TORCHDYNAMO_DISABLE"] == "1"
    given = engine.arguments(SETTINGS)
    assert given["enable_sleep_mode"] is False
    assert given["enforce_eager"] is True
    assert given["kv_cache_memory_bytes"] == engine.CPU_CACHE_BYTES


@pytest.mark.parametrize(
    ("family", "nvcc", "kind", "chosen"),
    [
        (100, None, "llama", "FLASH_ATTN"),
        (100, "/usr/local/cuda/bin/nvcc", "llama", None),
        (100, None, "deepseek_v3", None),
        (90, None, "llama", None),
    ],
)
def test_no_attention_is_chosen_that_would_be_compiled_in_vain(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    family: int,
    nvcc: str | None,
    kind: str,
    chosen: str | None,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("kernels"))
    from vllm.platforms.cuda import _get_backend_priorities
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    first, second, *_ = _get_backend_priorities(False, DeviceCapability(10, 0))
    assert (first.name, second.name) == ("FLASHINFER", "FLASH_ATTN")
    on(monkeypatch, cpu=False, family=family)
    monkeypatch.setattr(shutil, "which", lambda name: nvcc)
    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    given = engine.arguments(replace(SETTINGS, model=str(tmp_path))).get("attention_backend")
    assert given == chosen
    assert given is None or given in AttentionBackendEnum.__members__


def test_a_service_called_vllm_leaves_vllms_port_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets VLLM_PORT for it, and vLLM raises as soon as it needs a port."""
    from vllm import envs

    on(monkeypatch, cpu=True)
    monkeypatch.setenv("VLLM_PORT", "tcp://10.0.0.7:8000")
    with pytest.raises(ValueError, match="appears to be a URI"):
        envs.get_vllm_port()
    engine._prepare_environment()
    assert envs.get_vllm_port() is None
    monkeypatch.setenv("VLLM_PORT", "8000")
    engine._prepare_environment()
    assert envs.get_vllm_port() == 8000


def test_vllms_platform_asks_nvml_by_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM itself loads the plugin, and looks an unknown name up by it."""
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("kernels"))
    import vllm.platforms
    from vllm.platforms.cuda import NvmlCudaPlatform
    from vllm.plugins import load_general_plugins

    before = NvmlCudaPlatform.__dict__["device_control_id_to_physical_device_id"]
    monkeypatch.setattr(NvmlCudaPlatform, "device_control_id_to_physical_device_id", before)
    monkeypatch.setattr(vllm.platforms, "current_platform", NvmlCudaPlatform())
    monkeypatch.setattr("vllm.plugins.plugins_loaded", False)
    monkeypatch.setattr(vllm_plugin, "index_of", lambda name, nvml: len(name))
    load_general_plugins()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert NvmlCudaPlatform.device_id_to_physical_device_id(0) == len("MIG-1")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access"), EngineFailedError),
        (RuntimeError("Executor failed."), EngineFailedError),
        (AssertionError("collective_rpc should not be called"), EngineFailedError),
        (TimeoutError("RPC call to sample_tokens timed out."), EngineFailedError),
        (TrainingError("no such bucket"), TrainingError),
        (ValueError("a bug"), ValueError),
    ],
)
def test_an_error_of_a_gpu_or_of_a_rank_ends_the_engine_alone(
    error: Exception, raised: type[Exception]
) -> None:
    with pytest.raises(raised, match=str(error)) as told, engine._failures():
        raise error
    assert type(told.value) is raised


def test_what_a_sleeping_worker_has_given_back_is_not_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch goes on to count what vLLM's allocator has unmapped."""
    from trainer.weight_sync.vllm_shared_memory import Worker

    pieces = [SimpleNamespace(handle=(0, size), is_asleep=size > 10) for size in (50, 30, 7)]
    allocator = SimpleNamespace(pointer_to_data=dict(enumerate(pieces)))
    cumem = ModuleType("vllm.device_allocator.cumem")
    cumem.CuMemAllocator = SimpleNamespace(get_instance=lambda: allocator)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", cumem)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 100)
    assert Worker().memory_asleep() == 20
