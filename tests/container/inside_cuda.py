"""What cuda_check asks the Python of the checked environment, which has no other part of the tests.

python inside_cuda.py sizes | imports MODULE… | ops | kernel SOURCE KERNEL
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from unittest import mock

LARGEST = 6


def sizes() -> str:
    """Return the size of the installed packages, NVIDIA's together, as their records list files."""
    bytes_of: dict[str, int] = {}
    for package in distributions():
        name = package.metadata["Name"].lower()
        name = "NVIDIA's packages" if name.startswith("nvidia-") else name
        bytes_of[name] = bytes_of.get(name, 0) + _size(package)
    rows = sorted(bytes_of.items(), key=lambda row: -row[1])
    shown = [f"{name} {size / 1e9:.2f}" for name, size in rows[:LARGEST]]
    rest = sum(size for _, size in rows[LARGEST:]) / 1e9
    total = sum(bytes_of.values()) / 1e9
    return f"{total:.2f} GB without bytecode: {', '.join(shown)}, other {rest:.2f}"


def _size(package: Distribution) -> int:
    paths = [Path(str(package.locate_file(path))) for path in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.exists() and path.suffix != ".pyc")


def imports(*modules: str) -> str:
    """Import the modules. Raises SystemExit with those that cannot be imported."""
    failed = []
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise SystemExit("\n".join(failed))
    return f"{len(modules)} modules"


def ops() -> str:
    """Load DeepSpeed's built ops. Raises SystemExit if a GPU would not use them."""
    built: Any = importlib.import_module("deepspeed.git_version_info")
    if built.accelerator_name != "cuda":
        raise SystemExit(f"built for {built.accelerator_name}: on a GPU, DeepSpeed ignores them")
    importlib.import_module("torch")  # loads CUDA's libraries
    names = [name for name, there in built.installed_ops.items() if there]
    for name in names:
        importlib.import_module(f"deepspeed.ops.{'adam.' if 'adam' in name else ''}{name}_op")
    if {"fused_adam", "utils"} - set(names):
        raise SystemExit(f"only these are built: {names}")
    return ", ".join(names)


def kernel(source: str, name: str) -> str:
    """Compile one kernel of flash-attn with the flags of its own setup.py."""
    setuptools: Any = importlib.import_module("setuptools")
    os.chdir(source)
    with mock.patch.object(setuptools, "setup") as called:
        runpy.run_path("setup.py")
    given: Any = called.call_args.kwargs
    (extension,) = given["ext_modules"]
    extension.sources = [path for path in extension.sources if path.endswith(f"/{name}")]
    setuptools.setup(
        name="one-kernel",
        ext_modules=[extension],
        cmdclass={"build_ext": given["cmdclass"]["build_ext"]},
        script_args=["build_ext", "--build-temp", "build", "--build-lib", "build"],
    )
    (made,) = Path("build").glob("*.so")
    return f"{name} in {made.name}, {made.stat().st_size / 1e6:.1f} MB"


ANSWERS: Mapping[str, Callable[..., str]] = {
    "sizes": sizes,
    "imports": imports,
    "ops": ops,
    "kernel": kernel,
}

if __name__ == "__main__":
    print(ANSWERS[sys.argv[1]](*sys.argv[2:]))
