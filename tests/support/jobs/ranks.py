"""A script for every node that knows nothing of Rollcall: a linear model by Adam, over gloo.

Rank 0 prints each step and saves every tenth, in two files and a third that says that both are
there. On SIGTERM the ranks end at the same step, and rank 0 saves. The moments of Adam hold every
step so far: weights are those of an undisturbed run if each step was done once.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import distributed

from tests.support.jobs import record

EVERY = 10
SIZE, ROWS = 64, 32
SAVING_SECONDS = 0.2
"""Between the two files, as where they are large."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    asked = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(7)
    model = torch.nn.Linear(SIZE, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = load(options.resume, model, optimizer) if options.resume else 0
    if rank == 0:
        record.write("begin", step)
    while step < options.steps:
        step += 1
        told = torch.cat([*gradients_and_loss(model, seed=step * world + rank), asked])
        distributed.all_reduce(told)
        *gradients, loss, stop = told.split([SIZE, 1, 1, 1])
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = (gradient / world).view_as(parameter)
        optimizer.step()
        if rank == 0:
            record.write("step", step, value=loss.item() / world)
            print(f"step {step}/{options.steps} loss {loss.item() / world:.4f}", flush=True)
            if step % EVERY == 0 or stop.item() or step == options.steps:
                save(options.out / f"checkpoint-{step}", step, model, optimizer)
                record.write("saved", step)
        if stop.item():
            return 143
        record.pause()
    return 0


def gradients_and_loss(model: torch.nn.Module, seed: int) -> list[torch.Tensor]:
    """Of this rank's rows of a step, each as a vector."""
    rows = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(seed))
    loss = torch.mean((model(rows).squeeze(1) - rows.sum(1)) ** 2)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [*(gradient.flatten() for gradient in gradients), loss.detach().view(1)]


def save(
    directory: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    directory.mkdir(parents=True, exist_ok=True)  # half written by an earlier attempt
    save_file(model.state_dict(), directory / "model.safetensors")
    time.sleep(SAVING_SECONDS)
    torch.save({"step": step, "optimizer": optimizer.state_dict()}, directory / "optimizer.pt")
    (directory / "done").touch()


def load(directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the step after which the checkpoint was saved."""
    model.load_state_dict(load_file(directory / "model.safetensors"))
    state = torch.load(directory / "optimizer.pt", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    code = main()
    distributed.destroy_process_group()  # without it, torch with gloo often aborts at the exit
    sys.exit(code)
