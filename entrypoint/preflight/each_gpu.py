"""How a check asks each GPU of this node.

Each check asks the GPUs anew, and the libraries count their users: NVML itself, amdsmi by our own
count. So a call that hangs fails one check only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from entrypoint.machine.gpus import discover
from entrypoint.machine.gpus.protocol import Gpu, GpuError
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Finding, Verdict, worst

NVML_TIMEOUT = 20.0
"""Seconds. Without persistence mode the driver takes a few seconds to wake a GPU."""

Judge = Callable[[Gpu], Finding | None]


def each(context: Context, judge: Judge) -> Finding:
    """The worst of what `judge` finds on the GPUs. Equal findings are named once."""
    try:
        with discover.opened(context.settings, context.machine) as gpus:
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
        remedy = "reset the GPU, or reboot the node if the GPU is off the bus"
        return Finding(Verdict.FAIL, f"does not answer ({error})", remedy)


def _named(indices: list[int]) -> str:
    noun = "GPU" if len(indices) == 1 else "GPUs"
    return f"{noun} {', '.join(map(str, indices))}"
