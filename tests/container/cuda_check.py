"""Prove of the CUDA image what needs no GPU: its locks install, modules import, kernels compile.

    python -m tests.container.cuda_check [--verl] [--python python3.12]

`make cuda-check` runs it, CI does not. Each step prints its seconds and what it showed; a step that
fails prints the end of its output. It needs Python 3.12, g++ and 20 GB of disk. nvcc and CUDA's
headers are packages of requirements/. The environments stay in .cuda/, so that a second run
installs only what is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.container.dockerfile import stages
from tests.support.repository import ROOT

UV = Path(sys.executable).with_name("uv")
INSIDE = Path(__file__).with_name("inside_cuda.py")
OURS = ("contract", "env", "trainer", "entrypoint", "rollcall")
NEEDS_A_USERS_PACKAGE = "env.environments.verifiers_environment"
OF_VERL = ("verl.trainer.main_ppo", "verl.trainer.ppo.ray_trainer", "vllm")
KERNEL = "flash_fwd_hdim64_fp16_sm80.cu"
LESS = {
    **{"TORCH_CUDA_ARCH_LIST": "8.0", "FLASH_ATTN_CUDA_ARCHS": "80"},  # A100 alone
    **{"MAX_JOBS": "1", "NVCC_THREADS": "1"},
}
LAST_LINES = 30


@dataclass(frozen=True, slots=True)
class Environment:
    """One of the image's: `cuda`, or `verl` beside it."""

    name: str
    base: str
    """The Python that it is made of."""

    @property
    def root(self) -> Path:
        return ROOT / ".cuda" / self.name

    @property
    def stage(self) -> str:
        return "cuda-build" if self.name == "cuda" else "cuda-verl-build"

    @property
    def cuda(self) -> Path:
        """Where the packages put CUDA."""
        return self.root / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13"

    def ask(self, *words: str) -> str:
        """Return the last line of inside_cuda's answer. Raises CalledProcessError."""
        environ = {**variables(self), "PYTHONPATH": str(ROOT)}
        said = run(self.root / "bin" / "python", "-P", INSIDE, *words, **environ)
        return said.splitlines()[-1]

    def lock(self, name: str, *, flash_attn: bool) -> Path:
        """Return a lock with flash-attn alone, or without it."""
        files = [f"{name}-build.lock", *(["flash-attn.lock"] if name == "cuda" else [])]
        text = "".join((ROOT / "requirements" / file).read_text() for file in files)
        parts = re.findall(r"^\S.*\n(?: .*\n)*", text, re.MULTILINE)
        kept = [part for part in parts if part.startswith("flash-attn") is flash_attn]
        path = self.root / f"{name}-build-{flash_attn}.txt"
        path.write_text("".join(kept))
        return path


def run(*argv: str | Path, **environ: str) -> str:
    """Return all that the program printed. Raises CalledProcessError."""
    done = subprocess.run(
        argv,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    done.check_returncode()
    return done.stdout


def variables(environment: Environment) -> dict[str, str]:
    """Return those with which the Dockerfile builds, for one architecture, one job at a time."""
    body = stages()[environment.stage]
    (words,) = re.findall(r"^RUN ((?:[A-Z_]+=\S+[\s\\]+)+)pip", body, re.MULTILINE)
    given = dict(word.split("=", 1) for word in words.replace("\\", " ").split())
    path = f"{environment.root / 'bin'}:{os.environ['PATH']}"
    return {**given, **LESS, "CUDA_HOME": str(environment.cuda), "PATH": path}


def install(environment: Environment) -> str:
    if not environment.root.exists():
        run(environment.base, "-m", "venv", environment.root)
    lock = ROOT / "requirements" / f"{environment.name}.lock"
    return _install(environment, lock)


def _install(environment: Environment, lock: Path) -> str:
    to = ("--python", environment.root, "--no-deps", "--require-hashes")
    run(UV, "pip", "install", *to, "--requirement", lock)
    return f"{len(re.findall('^[a-z]', lock.read_text(), re.MULTILINE))} packages"


def sizes(environment: Environment) -> str:
    return environment.ask("sizes")


def nvcc(environment: Environment) -> str:
    _install(environment, ROOT / "requirements" / "cuda-check.lock")
    for link, target in (("lib64", "lib"), ("lib/libcudart.so", "libcudart.so.13")):
        if not (path := environment.cuda / link).exists():  # as in NVIDIA's own installation
            path.symlink_to(target)
    return run(environment.cuda / "bin" / "nvcc", "--version").splitlines()[-1]


def build(environment: Environment) -> str:
    """Install what the Dockerfile builds, but flash-attn, whose build takes hours."""
    lock = environment.lock(environment.name, flash_attn=False)
    flags = ("--no-deps", "--no-build-isolation", "--require-hashes", "--no-cache-dir")
    pip = environment.root / "bin" / "pip"
    run(pip, "install", *flags, "--requirement", lock, **variables(environment))
    return ", ".join(re.findall("^[a-z].*(?= )", lock.read_text(), re.MULTILINE))


def ops(environment: Environment) -> str:
    return environment.ask("ops")


def imports(environment: Environment) -> str:
    paths = [path.relative_to(ROOT) for name in OURS for path in (ROOT / name).rglob("*.py")]
    ours = sorted({".".join(path.with_suffix("").parts) for path in paths})
    ours = [name.removesuffix(".__init__") for name in ours if name != NEEDS_A_USERS_PACKAGE]
    return environment.ask("imports", *(ours if environment.name == "cuda" else OF_VERL))


def kernel(environment: Environment) -> str:
    """Compile one of flash-attn's kernels; the source comes from the lock, by its hash."""
    lock = environment.lock(environment.name, flash_attn=True)
    sources = environment.root / "sources"
    flags = ("--no-deps", "--no-build-isolation", "--require-hashes", "--dest", sources)
    skip = {**variables(environment), "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
    run(environment.root / "bin" / "pip", "download", *flags, "--requirement", lock, **skip)
    (archive,) = sources.glob("flash_attn-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(sources, filter="data")
    return environment.ask("kernel", str(archive).removesuffix(".tar.gz"), KERNEL)


Step = tuple[str, Callable[[Environment], str]]
OF_CUDA: Sequence[Step] = (
    ("cuda.lock installs", install),
    ("its size", sizes),
    ("nvcc of the index", nvcc),
    ("the rest compiles", build),
    ("DeepSpeed's ops load", ops),
    ("our modules import", imports),
    ("flash-attn's kernel compiles", kernel),
)
OF_WITH_VERL: Sequence[Step] = (
    ("verl.lock installs", install),
    ("its size", sizes),
    ("nvcc of the index", nvcc),
    ("the rest compiles", build),
    ("verl's modules import", imports),
    ("flash-attn's kernel compiles", kernel),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the CUDA image without a GPU.")
    parser.add_argument("--verl", action="store_true", help="check the environment of verl")
    parser.add_argument("--python", default="python3.12", help="a Python 3.12 with venv")
    options = parser.parse_args()
    environment = Environment("verl" if options.verl else "cuda", options.python)
    failed = 0
    for name, step in OF_WITH_VERL if options.verl else OF_CUDA:
        began = time.monotonic()
        try:
            verdict, shown = "ok", step(environment)
        except subprocess.CalledProcessError as error:
            verdict, shown = "FAILED", "\n".join(error.output.splitlines()[-LAST_LINES:])
            failed += 1
        print(f"{verdict:<6} {time.monotonic() - began:5.0f} s  {name}: {shown}", flush=True)
        if failed and step is install:
            break
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
