"""A short load on every GPU: does it multiply and copy as its model should?

It runs after the other checks, in a process of its own, so that a GPU that hangs there takes
neither this node nor what the others look at with it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entrypoint.preflight import gpu, models, versions
from entrypoint.preflight.check import About, Check, Context, Finding, Verdict, worst
from entrypoint.process import NODE_MARK, Process

TIMEOUT = 90.0
"""Seconds: torch's import and the GPUs' contexts take most of it."""
COMMAND = (sys.executable, "-m", "trainer.burn")


def burn(context: Context) -> Finding:
    if not gpu.count(context.dev):
        return Finding(Verdict.SKIP, gpu.NO_GPU)
    if not versions.installed("torch"):
        return Finding(Verdict.SKIP, "torch is not installed, so nothing can be computed")
    return run(COMMAND, context)


def run(command: Sequence[str], context: Context) -> Finding:
    """What the burn's own process printed, judged."""
    env = {**context.environ, NODE_MARK: context.settings.node_mark}
    with tempfile.TemporaryDirectory() as directory:
        child = Process("burn", command, env=env, log_to=Path(directory) / "out")
        try:
            code = child.wait(TIMEOUT - 5)
            text = child.tail()
        finally:
            child.stop(grace=1.0)
    if code is None:
        return Finding(Verdict.FAIL, "the burn hangs", "reset the GPUs, or use another node")
    try:
        rows = json.loads(text.splitlines()[-1])
        return worst([judge(index, row) for index, row in enumerate(rows)])
    except (ValueError, LookupError, TypeError):
        said = text.splitlines()[-1] if text else "nothing"
        remedy = "run `python -m trainer.burn` and read what it says"
        return Finding(Verdict.FAIL, f"the burn ended with {code}: {said}", remedy)


def judge(index: int, row: dict[str, Any]) -> Finding:
    """`row`: the GPU's model, its matrix product in TFLOP/s, its copy in GB/s."""
    name, tflops, copied = str(row["model"]), float(row["tflops"]), float(row["copy_gbs"])
    evidence = f"GPU {index} ({name}): {tflops:.0f} TFLOP/s, {copied:.0f} GB/s"
    if not row["correct"]:
        return Finding(Verdict.FAIL, f"{evidence}, and a wrong product", "replace the GPU")
    model = models.find(name)
    if model is None:
        return Finding(Verdict.PASS, f"{evidence}; the table does not have this model")
    shares = (tflops / model.tflops, copied / model.memory_gbs)
    evidence += f" ({shares[0]:.0%} and {shares[1]:.0%} of {model.name}'s peaks)"
    remedy = "look at gpu.slowdown, gpu.temperature and what else runs there; else another node"
    if shares[0] < models.LEAST_MATMUL or shares[1] < models.LEAST_COPY:
        return Finding(Verdict.FAIL, evidence, remedy)
    if shares[0] < models.ENOUGH_MATMUL or shares[1] < models.ENOUGH_COPY:
        return Finding(Verdict.WARN, evidence, remedy)
    return Finding(Verdict.PASS, evidence)


CHECKS = (
    Check(
        "gpu.burn",
        "do the GPUs compute, and copy, as fast as their model should?",
        burn,
        About(
            evidence="a second of BF16 matrix products and of copies on all GPUs at once, and "
            "whether a product is right",
            threshold=f"fails below {models.LEAST_MATMUL:.0%} of the peak of products or "
            f"{models.LEAST_COPY:.0%} of the memory's, warns below "
            f"{models.ENOUGH_MATMUL:.0%} or {models.ENOUGH_COPY:.0%}",
            source="peaks: the table of models below; shares: our choice",
            remedy="look at gpu.slowdown and gpu.temperature; else use another node",
        ),
        timeout=TIMEOUT,
        loads=True,
    ),
)
