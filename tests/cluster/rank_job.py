"""A script for every node that knows nothing of Rollcall: its ranks add numbers over gloo.

Rank 0 prints each step and saves every fifth. On SIGTERM the ranks end at the next step, and rank 0
saves. `sum` in a checkpoint is wrong if a step is skipped or done twice.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed

EVERY = 5


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    asked = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    step, total = 0, 0.0
    if options.resume:
        row = json.loads((options.resume / "state.json").read_text())
        step, total = row["step"], row["sum"]
    print(f"rank {rank} of {world} begins after step {step}", flush=True)
    while step < options.steps:
        step += 1
        number, stop = torch.tensor([float(step)]), asked.clone()
        distributed.all_reduce(number)
        distributed.all_reduce(stop)
        total += number.item() / world
        if rank == 0:
            print(f"step {step}/{options.steps} sum {total:.0f}", flush=True)
            if step % EVERY == 0 or stop.item() or step == options.steps:
                save(options.out / f"checkpoint-{step}", {"step": step, "sum": total})
        if stop.item():
            return 143
        time.sleep(options.seconds)
    return 0


def save(directory: Path, row: dict[str, float]) -> None:
    directory.mkdir(parents=True, exist_ok=True)  # half written by an earlier attempt
    (directory / "state.json").write_text(json.dumps(row))
    (directory / "done").touch()


if __name__ == "__main__":
    code = main()
    distributed.destroy_process_group()  # without it, torch with gloo often aborts at the exit
    sys.exit(code)
