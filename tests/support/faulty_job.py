"""The job of node_cluster_job.py, which fails as the file RUN/fault says, once each time."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
import tomllib
import traceback
from pathlib import Path

JOB = Path(__file__).with_name("node_cluster_job.py")
RECORDED = Path(__file__).parents[1] / "data" / "failures" / "gpu.toml"
LOST_GPU = "a GPU has fallen off the bus, in the kernel's words"
FULL_DISK, GPU_LOST, HANG = "full disk", "GPU lost", "hang"


def main() -> None:
    threading.Thread(target=_look, daemon=True).start()
    runpy.run_path(str(JOB), run_name="__main__")


def _look() -> None:
    fault = Path(os.environ["ROLLCALL_RUN_DIR"]) / "fault"
    while not fault.exists():
        time.sleep(0.1)
    kind = fault.read_text()
    fault.unlink()
    if kind == HANG:
        os.kill(os.getpid(), signal.SIGSTOP)
        return  # this thread may go on for a moment
    if kind == GPU_LOST:
        cases = tomllib.loads(RECORDED.read_text())["case"]
        print(next(case["log"] for case in cases if case["name"] == LOST_GPU), flush=True)
    elif kind == FULL_DISK:
        try:
            with open("/dev/full", "wb") as disk:  # noqa: PTH123 - the kernel's own answer
                disk.write(b"a checkpoint" * 10_000)
        except OSError:
            traceback.print_exc()
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
