"""A training job without training: one spread actor a node, a step every tenth of a second.

It keeps the trainer's side of the border (progress, journal, resuming, SIGTERM → save → 143) and
ends when RUN/finish appears.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from contract.exit_codes import ExitCode
from contract.journal import EventSource, append_event
from contract.progress import Progress
from contract.run_dir import RunFiles

SAVE_EVERY = 5
STEP_SECONDS = 0.1
MANY = 1_000_000


class Member:
    """What a worker's death takes with it."""

    def __init__(self) -> None:
        print("a member is here", flush=True)

    def step(self) -> str:
        return str(ray.util.get_node_ip_address())


def main() -> int:
    run = RunFiles(Path(os.environ["ROLLCALL_RUN_DIR"]))
    attempt = int(os.environ["ROLLCALL_ATTEMPT"])
    step = int(os.environ.get("ROLLCALL_RESUME_FROM", "0"))
    ray.init(address="auto", log_to_driver=False)
    stopping = listen()
    members = spread(sum(node["Alive"] for node in ray.nodes()))
    tell(run, attempt, "resume", step)
    saved = step
    while not (stopping or (run.root / "finish").exists()):
        ray.get([member.step.remote() for member in members])
        step += 1
        tell(run, attempt, "step", step)
        if step % SAVE_EVERY == 0:
            saved = save(run, attempt, step)
        write(run, attempt, step, saved, total=MANY)
        time.sleep(STEP_SECONDS)
    write(run, attempt, step, save(run, attempt, step), total=MANY if stopping else step)
    return ExitCode.STOPPED if stopping else ExitCode.FINISHED


def listen() -> list[int]:
    """Filled by the first SIGTERM. After `ray.init`, which installs a handler of its own."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    return signals


def spread(nodes: int) -> list[ray.actor.ActorHandle]:
    group = placement_group([{"CPU": 1}] * nodes, strategy="STRICT_SPREAD")
    there = PlacementGroupSchedulingStrategy(group)
    member = ray.remote(num_cpus=1)(Member)
    return [member.options(scheduling_strategy=there).remote() for _ in range(nodes)]


def save(run: RunFiles, attempt: int, step: int) -> int:
    tell(run, attempt, "checkpoint", step)
    return step


def tell(run: RunFiles, attempt: int, kind: str, step: int) -> None:
    append_event(
        run.journal, kind, f"{kind} {step}", {"step": step}, source=EventSource(attempt=attempt)
    )


def write(run: RunFiles, attempt: int, step: int, saved: int, *, total: int) -> None:
    Progress(
        step=step,
        total_steps=total,
        samples=step,
        attempt=attempt,
        reward=0.5,
        reward_first=0.1,
        step_seconds=STEP_SECONDS,
        checkpoint=saved,
    ).write(run.progress)


if __name__ == "__main__":
    sys.exit(main())
