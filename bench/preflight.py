"""How long the preflight takes on this node.

Value: median wall time of a whole `doctor`, from the start of the process to its end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench.boot import under_tini
from bench.result import report
from entrypoint.commands.demo import inherited
from env.http.arguments import positive

TARGET_SECONDS = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=5)
    options = parser.parse_args()
    seconds = sorted(doctor() for _ in range(options.rounds))
    print(f"doctor: {', '.join(f'{one:.2f}' for one in seconds)} s", flush=True)
    ok = report(
        "preflight",
        statistics.median(seconds),
        unit="s",
        target=TARGET_SECONDS,
        better="lower",
        detail={"rounds": options.rounds, "cores": os.cpu_count()},
    )
    return 0 if ok else 1


def doctor() -> float:
    """Wall seconds of the whole command on this node, as its image starts it."""
    with tempfile.TemporaryDirectory(prefix="rollcall-doctor-") as run_dir:
        began = time.monotonic()
        done = subprocess.run(
            [*under_tini(), sys.executable, "-m", "entrypoint", "doctor", "--json"],
            env=inherited() | {"ROLLCALL_RUN_DIR": run_dir},
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"this node is not fit:\n{done.stdout}{done.stderr}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
