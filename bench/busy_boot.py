"""Starts of a head and two workers beside 30 busy processes: do all reach step 1, and when?

The busy processes have the lowest priority but one fifth, which has the priority of the nodes: a
machine whose other users compute. `--starts` and `--busy` set how much. What the nodes' consoles
warned of is in the detail: a line, and how often it came.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import boot
from bench.result import report
from entrypoint.machine.inventory import load
from env.http.arguments import positive

STARTS, BUSY = 20, 30
AT_FULL_PRIORITY = 5
"""One of so many busy processes has the priority of the nodes."""
BUSY_SECONDS = 3600
SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
WARNING = re.compile(r"WARNING: (.*)|ERROR: (.*)")
NUMBER = re.compile(r"[0-9a-f]{12,}|\d+(?:\.\d+)?")
LONGEST = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=positive, default=STARTS)
    parser.add_argument("--busy", type=positive, default=BUSY)
    given = parser.parse_args()
    seconds: list[float] = []
    failed: list[str] = []
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="rollcall-busy-") as directory:
        root, data = Path(directory), Path(directory) / "data"
        prepare = [sys.executable, "-m", "env.prepare", "arithmetic", "--out", str(data)]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        with busy(given.busy):
            for number in range(given.starts):
                own = root / f"start-{number}"
                try:
                    seconds.append(boot.timed(boot.with_rollcall, own, boot.job(data)))
                except SystemExit as error:
                    failed.append(str(error)[-LONGEST:])
                said.update(set(warnings(own)))
                print(f"start {number}: {seconds[-1:]} s, {load()}, {failed[-1:]}", flush=True)
    reached = report(
        *("busy_boot", len(seconds) / given.starts),
        unit="share of the starts that reach step 1",
        target=1.0,
        better="higher",
        detail={
            "starts": given.starts,
            "busy": given.busy,
            "slowest_seconds": round(max(seconds, default=0.0), 1),
            "median_seconds": round(statistics.median(seconds), 1) if seconds else None,
            "failed": failed,
            "said": dict(said.most_common(20)),
            "cores": os.cpu_count(),
        },
    )
    return 0 if reached else 1


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes busy, which end by themselves after BUSY_SECONDS."""
    with ExitStack() as stack:
        for number in range(count):
            nice = [] if number % AT_FULL_PRIORITY == 0 else ["nice", "-n", "19"]
            words = [*nice, sys.executable, "-c", SPIN.format(BUSY_SECONDS)]
            process = subprocess.Popen(words)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def warnings(root: Path) -> Iterator[str]:
    """Yield what the consoles of a start warned of, without its numbers."""
    for path in sorted(root.glob("node-*.log")):
        for found in WARNING.finditer(path.read_text(errors="replace")):
            yield NUMBER.sub("N", found[1] or found[2])[:LONGEST]


if __name__ == "__main__":
    sys.exit(main())
