"""A script for every node that knows nothing of Rollcall: in its first life, one rank stands still.

Rank 0 prints each step. On resumption, all ranks run to the end.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import distributed

LAST, STILL = 8, 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--marker", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    is_first = not options.marker.exists()
    distributed.barrier()
    options.marker.touch()
    for step in range(1, LAST + 1):
        if is_first and step == STILL and rank == options.rank:
            loops()
        distributed.all_reduce(torch.ones(4))
        if rank == 0:
            print(f"step {step}/{LAST}", flush=True)
    distributed.destroy_process_group()


def loops() -> None:
    while True:
        time.sleep(0.1)  # other tests have the CPU


if __name__ == "__main__":
    main()
