"""Time from `sbatch` to the first finished step on a real Slurm: the shipped file, and by hand."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.sides import rest_submit
from contract.progress import Progress
from contract.run_dir import RunFiles
from tests.support.slurm_site import SlurmSite

BY_HAND = Path(__file__).with_name("slurm_by_hand.sbatch")
SUBMIT = rest_submit.__file__
TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.05


def timed(site: SlurmSite, script: Path, root: Path, flags: list[str]) -> float:
    """Seconds from `sbatch` to the first finished step. Afterwards the nodes start anew.

    By hand, Ray's processes outlive their step on a node, and hold Ray's ports.
    """
    run = RunFiles(root)
    env = {"RUNTIME": "none", "VENV": sys.prefix, "SHARED": str(site.root), "SUBMIT": SUBMIT}
    words = ("sbatch", "--parsable", "--gpus-per-node=0", "--nodes=3", str(script), *flags)
    began = time.monotonic()
    number = site.answer(*words, ROLLCALL_RUN_DIR=str(run.root), **env)
    try:
        while Progress.read(run.progress) is None:
            if time.monotonic() - began > TIMEOUT_SECONDS:
                raise SystemExit(f"no step within {TIMEOUT_SECONDS:.0f} s:\n{site.logs()}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began
    finally:
        site.cancel(number)
        site.reboot()
