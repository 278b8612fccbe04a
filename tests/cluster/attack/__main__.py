"""Attacks on a real head, worker, reward server and retrieval server of this machine.

    python -m tests.cluster.attack [NAME …]
    python -m tests.cluster.attack --unprotected

Each line says an attack, its target, who tries it and what it has found. Each is bounded in count
and time, and goes to loopback alone. Exit code 1: something was found.

With `--unprotected`, the attacks run on a copy of the tree whose protections are taken off, as
tests/data/unprotected.toml says. Exit code 1: an attack has not found its fault there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.attack import unprotected
from tests.cluster.attack.run import attacked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unprotected", action="store_true", help="on a tree without protections")
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks; none: all")
    arguments = parser.parse_args()
    if arguments.unprotected:
        return unprotected.main(arguments.names)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and the head would, too
    began, found, count = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="rollcall-attack-", dir="/tmp") as directory:
        for result in attacked(Path(directory), arguments.names):
            print(result, flush=True)
            count += 1
            found += len(result.findings)
    print(f"{count} attacks in {time.monotonic() - began:.0f} s; found: {found or 'nothing'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
