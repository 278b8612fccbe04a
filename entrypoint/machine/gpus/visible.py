"""Which of the machine's GPUs are this node's: all, less those that a variable leaves to others.

NVIDIA_VISIBLE_DEVICES is not read: it speaks to the container's runtime, and where GPUs are given
by CDI it says `void` beside them. The device files tell what the runtime made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BY_ID = ("GPU-", "MIG-")
"""What the names of GPUs, and of parts of them, begin with where they are no numbers."""


def variables(environ: Mapping[str, str], *, is_amd: bool) -> list[str]:
    """Those that hide GPUs here, in the order in which they apply.

    On AMD, Ray reads HIP's, else CUDA's; both number what ROCR's has left.
    """
    read = "HIP_VISIBLE_DEVICES" if is_amd else "CUDA_VISIBLE_DEVICES"
    if read not in environ:
        read = "CUDA_VISIBLE_DEVICES"
    candidates = ("ROCR_VISIBLE_DEVICES", read) if is_amd else (read,)
    return [name for name in candidates if name in environ]


def names(environ: Mapping[str, str], found: int, *, is_amd: bool) -> list[str]:
    """Of `found` GPUs those that may be used: by number, or by the id that a variable gives."""
    among = [str(number) for number in range(found)]
    for variable in variables(environ, is_amd=is_amd):
        among = _chosen(environ[variable], among)
    return among


def _chosen(value: str, among: Sequence[str]) -> list[str]:
    """As CUDA reads it: what follows a name that means no GPU (`-1`, `NoDevFiles`) is hidden."""
    chosen: list[str] = []
    for name in map(str.strip, value.split(",")):
        if name.isdigit() and int(name) < len(among):
            chosen.append(among[int(name)])
        elif name.startswith(BY_ID):
            chosen.append(name)
        else:
            break
    return list(dict.fromkeys(chosen))
