"""A short load on every GPU: does it multiply and copy as its model should?

It runs after the other checks, in a process of its own, so that a GPU that hangs there takes
neither this node nor what the others look at with it.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract.launch.programs import Program
from contract.resources import gpu_model
from entrypoint.config.check_names import CheckName
from entrypoint.machine import inventory
from entrypoint.machine.gpus import discover
from entrypoint.machine.gpus.protocol import GpuError
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict, worst
from entrypoint.processes.process import Process, marks
from entrypoint.processes.programs import program

TIMEOUT = 90.0
"""Seconds: torch's import and the GPUs' contexts take most of it."""
LOOK_SECONDS = 0.2
"""Interval between looks whether the burn is to end."""
MIG = " MIG "
"""In the names of MIG devices, as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
COMMAND = program(Program.GPU_BURN)
LEAST_MATMUL, ENOUGH_MATMUL = 0.2, 0.4
LEAST_COPY, ENOUGH_COPY = 0.4, 0.65
"""Shares of the peak: below the first the burn fails, below the second it warns.

They are our choice: a large matrix product reaches 60 to 80 % on a healthy NVIDIA GPU and 45 to
60 % on an MI300X, a copy 85 % and more, a throttled GPU far less.
"""


def burn(context: Context, over: threading.Event | None = None) -> Finding:
    """Ask the GPUs. If `over` is set meanwhile, the burn ends, and what it found says nothing."""
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    if context.running_pid is not None:
        return Finding(Verdict.SKIP, f"this node is at work on them (pid {context.running_pid})")
    if not inventory.installed("torch"):
        return Finding(Verdict.SKIP, "torch is not installed, so nothing can be computed")
    used = context.gpus
    return run([*COMMAND, f"--gpus={len(used)}"], context, over)


def run(command: Sequence[str], context: Context, over: threading.Event | None = None) -> Finding:
    """Run the burn in a process of its own, and judge what it prints. `over`: as in `burn`."""
    settings = context.settings
    env = discover.environment(settings, context.machine) | marks(settings.node_mark)
    with tempfile.TemporaryDirectory() as directory:
        child = Process("burn", command, env=env, log_to=Path(directory) / "out")
        try:
            code = _ended(child, over or threading.Event())
            text = child.tail()
        finally:
            child.stop(grace=1.0)
    if code is None:
        return Finding(Verdict.FAIL, "the burn hangs", "reset the GPUs, or use another node")
    try:
        rows = json.loads(text.splitlines()[-1])
        parts = _divided(context)
        return worst([judge(i, row, divided=i in parts) for i, row in enumerate(rows)])
    except (ValueError, LookupError, TypeError):
        said = text.splitlines()[-1] if text else "nothing"
        remedy = f"run `python -m {Program.GPU_BURN}` and read what it says"
        return Finding(Verdict.FAIL, f"the burn ended with {code}: {said}", remedy)


def _ended(child: Process, over: threading.Event) -> int | None:
    """Return the exit code; None if the burn hangs, or `over` is set."""
    deadline = time.monotonic() + TIMEOUT - 5
    while (code := child.wait(LOOK_SECONDS)) is None:
        if over.is_set() or time.monotonic() > deadline:
            return None
    return code


def _divided(context: Context) -> set[int]:
    """Indices, in torch's order, of AMD's GPUs that are parts of a divided GPU.

    A part of AMD's has the name of the whole GPU. The name of a MIG device shows that it is a part.
    """
    if not discover.is_amd(context.machine):
        return set()
    try:
        with discover.opened(context.settings, context.machine) as gpus:
            used = [] if isinstance(gpus, str) else [gpu for gpu in gpus if gpu is not None]
            whole = [isinstance(gpu, GpuError) or not gpu.partition() for gpu in used]
    except GpuError:
        return set()
    return {index for index, is_whole in enumerate(whole) if not is_whole}


def judge(index: int, row: dict[str, Any], *, divided: bool = False) -> Finding:
    """`row`: the GPU's model, its matrix product in TFLOP/s, its copy in GB/s."""
    name, tflops, copied = str(row["model"]), float(row["tflops"]), float(row["copy_gbs"])
    evidence = f"GPU {index} ({name}): {tflops:.0f} TFLOP/s, {copied:.0f} GB/s"
    if not row["correct"]:
        return Finding(Verdict.FAIL, f"{evidence}, and a wrong product", "replace the GPU")
    if divided or MIG in name:
        # Its share of the whole is not known here, and gpu.partition warns of it.
        return Finding(Verdict.PASS, f"{evidence}; of a part of a GPU only the product is judged")
    model = gpu_model(name)
    if model is None:
        return Finding(Verdict.PASS, f"{evidence}; the table does not have this model")
    shares = (tflops / model.tflops, copied / model.memory_gbs)
    evidence += f" ({shares[0]:.0%} and {shares[1]:.0%} of {model.name}'s peaks)"
    remedy = "look at gpu.slowdown, gpu.temperature and what else runs there; else another node"
    if shares[0] < LEAST_MATMUL or shares[1] < LEAST_COPY:
        return Finding(Verdict.FAIL, evidence, remedy)
    if shares[0] < ENOUGH_MATMUL or shares[1] < ENOUGH_COPY:
        return Finding(Verdict.WARN, evidence, remedy)
    return Finding(Verdict.PASS, evidence)


CHECKS = (
    Check(
        CheckName.GPU_BURN,
        "do the GPUs compute, and copy, as fast as their model should?",
        burn,
        timeout=TIMEOUT,
        loads=True,
    ),
)
