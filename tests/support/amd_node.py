"""A node's entrypoint on a machine with eight recorded MI300X, whose Ray detects them, or does not.

`python -m tests.support.amd_node …` takes the words of `python -m entrypoint`. AMD_MACHINE is the
directory of the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from entrypoint.machine import view
from tests.support.machines import RecordedAmdSmi, amd_dev
from tests.support.repository import ROOT

SMI = Path(__file__).with_name("rocm_smi.c")
"""ROCm's library, as far as Ray calls it to count GPUs."""
CAT = """#!/bin/sh
[ "$1" = /sys/module/amdgpu/initstate ] && exec echo live
exec /bin/cat "$@"
"""
"""Ray asks `cat` whether the driver is loaded."""


def machine(root: Path, *, ray_detects: bool) -> dict[str, str]:
    """Return the variables of a node on this machine. Needs a C compiler if Ray is to detect."""
    amd_dev(root)
    variables = {"AMD_MACHINE": str(root), "PYTHONPATH": str(ROOT), "ROCM_PATH": str(root / "rocm")}
    if not ray_detects:
        return variables
    library = root / "rocm" / "lib" / "librocm_smi64.so"
    library.parent.mkdir(parents=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, SMI], check=True)
    cat = root / "bin" / "cat"
    cat.parent.mkdir()
    cat.write_text(CAT)
    cat.chmod(0o755)
    return variables | {"PATH": f"{cat.parent}:{os.environ['PATH']}"}


def main() -> int:
    smi = RecordedAmdSmi()
    # Before the modules whose functions have it as a default.
    view.THIS_MACHINE = view.Machine(
        dev=Path(os.environ["AMD_MACHINE"]) / "dev", amdsmi=lambda: smi
    )
    from entrypoint.__main__ import main as entrypoint

    return entrypoint()


if __name__ == "__main__":
    sys.exit(main())
