"""Imports what the processes of a rank need, before Ray has chosen a GPU for them."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from trainer.cluster.imports import without_collections

DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dxg")
"""Open once CUDA or HIP is initialised; who only counts GPUs, by NVML, opens others."""
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it, torch looks for a GPU without opening it. All imports here have it."""
FAMILIES = ("llama", "qwen2", "qwen3")
"""The most common model families. Other families are imported when a model loads."""
MODULES = (
    *("trainer.workers.policy", "trainer.workers.critic", "trainer.workers.reference"),
    *("trainer.workers.ddp", "trainer.workers.reward", "trainer.rollout.hf_engine.engine"),
    *("trainer.checkpoint.replica_store", "trainer.checkpoint.writer"),
    "trainer.cluster.rendezvous",
    *(f"transformers.models.{name}.modeling_{name}" for name in FAMILIES),
)
"""None imports Ray."""


def import_all() -> None:
    """Import what a rank needs, and end the process if that has opened a GPU.

    Ray chooses the GPUs later, by a variable that CUDA and HIP read only once.
    """
    given = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    with without_collections():
        for name in MODULES:
            import_module(name)
    if given is None:
        del os.environ[NVML_CHECK]
    else:
        os.environ[NVML_CHECK] = given
    if opened := open_gpu():
        print(f"The imports of a rank have opened {opened}: no process stands by.", flush=True)
        os._exit(1)


def open_gpu() -> str:
    """Return the device by which CUDA or HIP is initialised in this process; "" if it is not."""
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if (target := str(file.readlink())).startswith(DEVICES):
                return target
    return ""
