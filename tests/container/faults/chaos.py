"""A nemesis: faults drawn from the matrix, one after the other, at moments drawn with them.

    python -m tests.container.faults.chaos --seed 7 --minutes 5

A blow falls once every worker is there again: one that is lost while it starts has nothing that it
could take from the job. The same seed draws the same faults with the same pauses before them. Each
is printed with the verdict on the run after it; the first that is not survived ends the whole with
exit code 1.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.container.faults.fault import Fault, undergo
from tests.container.faults.reward import RewardServer
from tests.container.faults.stage import BOOT_SECONDS, Stage, make_data
from tests.container.faults.table import MATRIX
from tests.support.node_cluster import HEAD

LONGEST_PAUSE = 4.0
"""Seconds of training before a fault, at most: some steps, perhaps a checkpoint."""


@dataclass(frozen=True, slots=True)
class Blow:
    pause: float
    """Seconds before it."""
    fault: Fault[Stage]


def blows(seed: int, matrix: tuple[Fault[Stage], ...] = MATRIX) -> Iterator[Blow]:
    """Without end."""
    dice = random.Random(seed)
    while True:
        yield Blow(dice.uniform(0, LONGEST_PAUSE), dice.choice(matrix))


def play(root: Path, seed: int, minutes: float) -> bool:
    """Whether the run has survived all that begins within so many minutes."""
    data = make_data(root / "data")
    with RewardServer() as reward:
        stage = Stage(root / "stage", data, reward)
        try:
            stage.start(HEAD, 1, 2)
            stage.goes_on(within=BOOT_SECONDS)
            stage.event("checkpoint", within=60)
            return suffer(stage, seed, minutes)
        finally:
            stage.close()


def suffer(stage: Stage, seed: int, minutes: float) -> bool:
    end = time.monotonic() + 60 * minutes
    for number, blow in enumerate(blows(seed), start=1):
        time.sleep(blow.pause)
        if time.monotonic() > end:
            print(f"seed {seed}: {number - 1} faults, step {stage.step}, no scar", flush=True)
            return True
        stage.until(stage.is_whole, "whole roll", within=BOOT_SECONDS)
        print(f"{number:3}. after {blow.pause:.1f} s: {blow.fault.sentence}", flush=True)
        try:
            result = undergo(stage, blow.fault)
        except AssertionError as error:
            print(f"     NOT SURVIVED (seed {seed}, fault {number}): {error}", flush=True)
            return False
        classes = ", ".join(result.classes) or "the attempt goes on, or ends with its head"
        print(f"     a new step after {result.seconds:.0f} s; {classes}; no scar", flush=True)
    raise AssertionError("the dice have no end")


def command(play: Callable[[Path, int, float], bool], about: str | None, minutes: float) -> int:
    """Run a game with the seed and the minutes of the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=minutes)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="chaos-") as root:
        return 0 if play(Path(root), options.seed, options.minutes) else 1


if __name__ == "__main__":
    sys.exit(command(play, __doc__, 5.0))
