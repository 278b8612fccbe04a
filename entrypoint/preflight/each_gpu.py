"""Which GPUs this node has, and how a check asks each of them.

Every check asks the GPUs anew, through a library whose users are counted, NVML's by itself and
amdsmi's by us: so one call that hangs is one check's verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from entrypoint.config.settings import Settings
from entrypoint.machine.gpus import amd, nvidia, visible
from entrypoint.machine.gpus.protocol import Gpu, GpuError
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Finding, Verdict, worst

NO_GPU = "no GPU on this machine"
NVML_TIMEOUT = 20.0
"""Seconds: without persistence mode the driver takes a few to wake a GPU up."""

Judge = Callable[[Gpu], Finding | None]
T = TypeVar("T")


def count(dev: Path = Path("/dev")) -> int:
    """GPUs by their device files: NVIDIA's, else AMD's render nodes beside /dev/kfd."""
    nvidia_files = [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if nvidia_files or not (dev / "kfd").exists():
        return len(nvidia_files)
    return len(list(dev.glob("dri/renderD*")))


def is_amd(dev: Path) -> bool:
    return (dev / "kfd").exists() and not list(dev.glob("nvidia[0-9]*"))


def of_node(settings: Settings, dev: Path = Path("/dev")) -> list[str]:
    """The GPUs that this node uses, by number or id: those with a device file that no variable
    hides, and of these the first ROLLCALL_NUM_GPUS, which are the ones that Ray gives out."""
    usable = visible.names(settings.environ, count(dev), is_amd=is_amd(dev))
    return usable[: settings.num_gpus]


def asked(settings: Settings) -> tuple[int, str] | None:
    """How many GPUs this node is to have, and which variable says so."""
    if settings.num_gpus is not None:
        return settings.num_gpus, "ROLLCALL_NUM_GPUS"
    if settings.platform.gpus_per_node is not None:
        return settings.platform.gpus_per_node, settings.platform.sources["gpus_per_node"]
    return None


def why_none(context: Context) -> str:
    """Why there is no GPU to look at; "" where there is one."""
    if not count(context.dev):
        return NO_GPU
    if of_node(context.settings, context.dev):
        return ""
    if context.settings.num_gpus == 0:
        return "this node uses no GPU (ROLLCALL_NUM_GPUS=0)"
    hiding = visible.variables(context.environ, is_amd=is_amd(context.dev))
    given = ", ".join(f"{name}={context.environ[name]}" for name in hiding)
    return f"this node uses no GPU ({given})"


@contextmanager
def opened(context: Context) -> Iterator[Sequence[Gpu | GpuError | None] | str]:
    """The machine's GPUs by their numbers: for one that does not answer its error, for one that
    this node does not use None; or why none can be asked.

    Raises GpuError where the library does not start.
    """
    names = of_node(context.settings, context.dev)
    if why := why_none(context):
        yield why
    elif is_amd(context.dev):
        library = context.amdsmi()
        if library is None:
            yield numbered(amd.in_sysfs(context.dev, context.sys), names)
        else:
            with amd.opened(library, context.sys / "class" / "kfd" / "kfd") as gpus:
                yield numbered(gpus, names)
    elif (nvml := context.nvml()) is None:
        yield "nvidia-ml-py is not installed, so the GPUs cannot be asked"
    else:
        with nvidia.opened(nvml):
            yield nvidia.shown(nvml, names)


def numbered(gpus: Sequence[T], names: Sequence[str]) -> list[T | None]:
    """`gpus` with None for those whose number is not among `names`."""
    return [gpu if str(index) in names else None for index, gpu in enumerate(gpus)]


def each(context: Context, judge: Judge) -> Finding:
    """What `judge` finds on every GPU: the worst verdict, equal evidence told once."""
    try:
        with opened(context) as gpus:
            if isinstance(gpus, str):
                return Finding(Verdict.SKIP, gpus)
            findings = [_judged(gpu, judge) if gpu is not None else None for gpu in gpus]
    except GpuError as error:
        return Finding(Verdict.FAIL, str(error), "check the driver: nvidia-smi or amd-smi")
    alike: dict[Finding, list[int]] = {}
    for index, finding in enumerate(findings):
        if finding is not None:
            alike.setdefault(finding, []).append(index)
    if not alike:
        return Finding(Verdict.SKIP, "these GPUs, or their driver, do not tell")
    return worst(
        [
            replace(finding, evidence=f"{_named(indices)}: {finding.evidence}")
            for finding, indices in alike.items()
        ]
    )


def _judged(gpu: Gpu | GpuError, judge: Judge) -> Finding | None:
    try:
        if isinstance(gpu, GpuError):
            raise gpu
        return judge(gpu)
    except GpuError as error:
        remedy = "reset the GPU, or reboot the node where it is off the bus"
        return Finding(Verdict.FAIL, f"does not answer ({error})", remedy)


def _named(indices: list[int]) -> str:
    noun = "GPU" if len(indices) == 1 else "GPUs"
    return f"{noun} {', '.join(map(str, indices))}"
