"""What a choice of the product gains over its alternative, on CPUs: `[ROW…]`, else all rows.

Each row prints both numbers and ends with its result as JSON. The alternative is in the row's
module, or a setting of the product or of the library. A row's module says what it measures:

- `passes`: passes of an update, of 4,096 samples within a budget of tokens
- `outputs`: CPU ms of a decode step in vLLM's output processor
- `rounds`: seconds of a weight update of 64 buckets over Ray
- `slices`: share of time in which an engine of asynchronous training has no work
- `overlap`: seconds of an update with and without `--overlap_comm`, and whether bits are the same
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module

from bench.alternatives.row import Row

ROWS = ("passes", "outputs", "rounds", "slices", "overlap")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    wanted = parser.parse_args().rows or list(ROWS)
    if unknown := sorted(set(wanted) - set(ROWS)):
        parser.error(f"no row {', '.join(unknown)}: there are {', '.join(ROWS)}")
    if len(wanted) == 1:
        return 0 if measured(wanted[0]).printed(wanted[0]) else 1
    # Each in a process of its own: some start Ray, others torch's collectives.
    command = [sys.executable, "-m", "bench.alternatives"]
    return max(subprocess.run([*command, name]).returncode for name in wanted)


def measured(name: str) -> Row:
    row: Row = import_module(f"bench.alternatives.{name}").measured()
    return row


if __name__ == "__main__":
    sys.exit(main())
