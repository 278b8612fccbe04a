"""Which of the machine's GPUs this node uses.

The node leaves out the GPUs that a variable such as CUDA_VISIBLE_DEVICES hides, and the integrated
graphics of an AMD processor unless a variable names them. AMD's three variables become one, so that
Ray, torch and vLLM see the same GPUs.

NVIDIA_VISIBLE_DEVICES is not read: it tells the container's runtime which device files to make.
With CDI it says `void` although GPUs are there. The device files show the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from entrypoint.config.settings import Settings
from entrypoint.machine.gpus import amd, nvidia
from entrypoint.machine.gpus.protocol import Gpu, GpuError
from entrypoint.machine.view import THIS_MACHINE, Machine

NO_GPU = "no GPU on this machine"
ID_PREFIXES = ("GPU-", "MIG-")
"""How the ids of GPUs, and of parts of GPUs, begin."""

AMD_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
HIDES_ALL = "-1"
"""A value that names no GPU. To ROCm, an empty value means that the variable is not set."""

T = TypeVar("T")


def count(machine: Machine = THIS_MACHINE) -> int:
    """The number of GPUs, by device files: NVIDIA's, else AMD's render nodes beside /dev/kfd.

    WSL has one device file for all GPUs: NVML counts them there.
    """
    if files := _nvidia_files(machine.dev):
        return len(files)
    if is_amd(machine):
        return len(amd.render_nodes(machine.dev, machine.sys))
    return _counted_by_nvml(machine) if is_wsl(machine) else 0


def is_amd(machine: Machine) -> bool:
    return (machine.dev / "kfd").exists() and not _nvidia_files(machine.dev)


def is_wsl(machine: Machine) -> bool:
    """Whether the GPUs are those of a Windows machine, behind one device file."""
    return (machine.dev / "dxg").exists()


def _nvidia_files(dev: Path) -> list[Path]:
    return [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]


def _counted_by_nvml(machine: Machine) -> int:
    if (nvml := machine.nvml()) is None:
        return 0
    try:
        with nvidia.opened(nvml):
            return int(nvml.nvmlDeviceGetCount())
    except (GpuError, nvml.NVMLError):
        return 0


def of_node(settings: Settings, machine: Machine = THIS_MACHINE) -> list[str]:
    """The GPUs that this node uses, by number or id.

    These are the first ROLLCALL_NUM_GPUS of the GPUs that no variable hides: Ray uses the same.
    """
    return _shown(settings.environ, machine)[: settings.num_gpus]


def requested(settings: Settings) -> tuple[int, str] | None:
    """The number of GPUs that this node should have, and the variable that says it."""
    if settings.num_gpus is not None:
        return settings.num_gpus, "ROLLCALL_NUM_GPUS"
    if settings.platform.gpus_per_node is not None:
        return settings.platform.gpus_per_node, settings.platform.sources["gpus_per_node"]
    return None


def why_none(settings: Settings, machine: Machine = THIS_MACHINE) -> str:
    """Why this node uses no GPU; "" if it uses one."""
    if not count(machine):
        return NO_GPU
    if of_node(settings, machine):
        return ""
    if settings.num_gpus == 0:
        return "this node uses no GPU (ROLLCALL_NUM_GPUS=0)"
    hiding = hiding_variables(settings.environ, is_amd=is_amd(machine))
    if not hiding:
        return f"{NO_GPU} but integrated graphics, which HIP_VISIBLE_DEVICES would have to name"
    given = ", ".join(f"{name}={settings.environ[name]}" for name in hiding)
    return f"this node uses no GPU ({given})"


@contextmanager
def opened(settings: Settings, machine: Machine) -> Iterator[Sequence[Gpu | GpuError | None] | str]:
    """The machine's GPUs by number, or the reason why none can be asked.

    A GPU that does not answer is its error; a GPU that this node does not use is None.

    Raises GpuError if the library does not start.
    """
    names = of_node(settings, machine)
    if why := why_none(settings, machine):
        yield why
    elif is_amd(machine):
        library = machine.amdsmi()
        if library is None:
            yield _used(amd.in_sysfs(machine.dev, machine.sys), names)
        else:
            with amd.opened(library, machine.sys / "class" / "kfd" / "kfd") as gpus:
                yield _used(gpus, names)
    elif (nvml := machine.nvml()) is None:
        yield "nvidia-ml-py is not installed, so the GPUs cannot be asked"
    else:
        with nvidia.opened(nvml):
            yield nvidia.shown(nvml, names)


def _used(gpus: Sequence[T], names: Sequence[str]) -> list[T | None]:
    """`gpus`, with None for each GPU whose number is not in `names`."""
    return [gpu if str(index) in names else None for index, gpu in enumerate(gpus)]


def hiding_variables(environ: Mapping[str, str], *, is_amd: bool) -> list[str]:
    """The variables that hide GPUs here, in the order in which they apply.

    On AMD, HIP's variable comes before CUDA's. Both number the GPUs that ROCR's has left, unless
    they repeat ROCR's value: Slurm sets several variables to the same GPUs.
    """
    read = "HIP_VISIBLE_DEVICES" if is_amd else "CUDA_VISIBLE_DEVICES"
    if read not in environ:
        read = "CUDA_VISIBLE_DEVICES"
    candidates = ("ROCR_VISIBLE_DEVICES", read) if is_amd else (read,)
    given = [name for name in candidates if name in environ]
    return given[:1] if given and same(*(environ[name] for name in given)) else given


def same(*values: str) -> bool:
    """Whether all `values` name the same GPUs in the same order."""
    return len({"".join(value.split()) for value in values}) == 1


def visible(environ: Mapping[str, str], found: int, *, is_amd: bool) -> list[str]:
    """The GPUs of `found` that no variable hides: by number, or by the id that a variable gives."""
    names = [str(number) for number in range(found)]
    for variable in hiding_variables(environ, is_amd=is_amd):
        names = _chosen(environ[variable], names)
    return names


def environment(settings: Settings, machine: Machine = THIS_MACHINE) -> dict[str, str]:
    """The node's environment, in which AMD's variables are one: CUDA_VISIBLE_DEVICES.

    Ray, torch, vLLM and ROCm read it if HIP_VISIBLE_DEVICES is not set. Ray also writes it, for
    each process, if Ray does not notice that the GPUs are AMD's. HIP_VISIBLE_DEVICES would win over
    it then, and every process would use the same first GPU.
    """
    environ = dict(settings.environ)
    if not is_amd(machine):
        return environ
    if not hiding_variables(environ, is_amd=True) and not _integrated(machine):
        return environ
    others = {name: text for name, text in environ.items() if name not in AMD_VARIABLES}
    return others | {"CUDA_VISIBLE_DEVICES": _as_value(settings, machine)}


def of_driver(settings: Settings, machine: Machine = THIS_MACHINE) -> dict[str, str]:
    """The variables that show the job's driver every GPU of this node.

    Ray hides AMD's GPUs from the driver, and not NVIDIA's. It writes either of the two variables.
    """
    if not is_amd(machine):
        return {}
    value = _as_value(settings, machine)
    return dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), value)


def _as_value(settings: Settings, machine: Machine) -> str:
    return ",".join(_shown(settings.environ, machine)) or HIDES_ALL


def _shown(environ: Mapping[str, str], machine: Machine) -> list[str]:
    """The machine's GPUs that no variable hides. Integrated graphics must be named by one."""
    names = visible(environ, count(machine), is_amd=is_amd(machine))
    if hiding_variables(environ, is_amd=is_amd(machine)):
        return names
    passed_over = _integrated(machine)
    return [name for name in names if int(name) not in passed_over]


def _integrated(machine: Machine) -> set[int]:
    return amd.integrated(machine.dev, machine.sys) if is_amd(machine) else set()


def _chosen(value: str, names: Sequence[str]) -> list[str]:
    """The GPUs of `names` that `value` names.

    As in CUDA, a name that means no GPU (`-1`, `NoDevFiles`) hides every GPU after it.
    """
    chosen: list[str] = []
    for name in map(str.strip, value.split(",")):
        if name.isdigit() and int(name) < len(names):
            chosen.append(names[int(name)])
        elif name.startswith(ID_PREFIXES):
            chosen.append(name)
        else:
            break
    return list(dict.fromkeys(chosen))
