"""Chaos that nobody attends: nodes are lost for ever, with failover and a spare.

    python -m tests.container.faults.unattended --seed 7 --minutes 15

A head, two workers and a spare train. Nothing that is lost is started again: a worker leads, and a
spare takes a place. Later another machine comes, as from a platform, and is a worker or the spare.
At the end the weights must be those of a run that nothing has disturbed, to the bit. The same seed
draws the same blows.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from contract.journal import timestamp
from tests.container.faults import chaos
from tests.container.faults.alone import train_alone
from tests.container.faults.fault import assert_kept, newest_step
from tests.container.faults.reward import Mood, RewardServer
from tests.container.faults.stage import BOOT_SECONDS, Stage, make_data, numbers
from tests.support.node_cluster import HEAD, signalled
from tests.support.watch import Watch

WORKERS, SPARES = 2, 1
LONGEST_PAUSE = 4.0
"""Seconds of training before a blow, at most."""
DEADLINE = 400.0
"""Seconds from a blow to a step that was never finished before, on a busy machine."""
START_SECONDS = 150
"""An attempt's start may take so long there. What stops for ever is found by other limits."""
KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


class Unattended(Stage):
    """Its head may be any of its nodes."""

    def __init__(self, root: Path, data: Path, reward: RewardServer) -> None:
        super().__init__(root, data, reward, workers=WORKERS)
        spares = {"ROLLCALL_SPARE_WORKERS": str(SPARES)}
        self._env |= {"ROLLCALL_HEAD_FAILOVER": "auto", **spares}
        self._env["ROLLCALL_HANG_TIMEOUT"] = str(START_SECONDS)
        for number in range(1 + WORKERS + SPARES):
            self.own[number] = {"ROLLCALL_BIND": f"127.0.0.{2 + number}"}

    @property
    def head(self) -> int:
        moves = self.events("head-moved")
        return int(moves[-1]["details"]["now"].removeprefix("worker-")) if moves else HEAD

    def environment(self, number: int) -> dict[str, str]:
        env = super().environment(number)
        return env | {"ROLLCALL_NODE_NAME": f"worker-{number}"}

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        Watch.until(self, done, what, within=within)

    def is_whole(self) -> bool:
        asked = self.ask("status", "--json")
        if asked.returncode:
            return False
        state = json.loads(asked.stdout)
        return state["present"] >= WORKERS and len(state["spares"]) >= SPARES

    def lose(self, number: int) -> None:
        """Its machine is gone, with all that it held."""
        self.kill(number)
        shutil.rmtree(self.ray_home(number), ignore_errors=True)

    def another_comes(self) -> None:
        """In the place of each machine that is gone, at its address: a worker, whoever was lost."""
        for number, node in list(self.nodes.items()):
            if not node.running:
                self.own[number]["RAY_WORKER"] = "1"
                self.start(number)

    def all_of(self, number: int) -> list[psutil.Process]:
        return [psutil.Process(self.nodes[number].pid), *self.processes(number)]

    def worker(self, dice: random.Random) -> int:
        """One of those that lead nothing: a worker or the spare."""
        return dice.choice([number for number in self.nodes if number != self.head])


@dataclass(frozen=True, slots=True)
class Blow:
    name: str
    sentence: str
    strike: Callable[[Unattended, random.Random], object]


def sends(role: str, number: signal.Signals) -> Callable[[Unattended, random.Random], object]:
    return lambda stage, _: stage.send(role, number)


def freezes(seconds: float, *, head: bool) -> Callable[[Unattended, random.Random], object]:
    def strike(stage: Unattended, dice: random.Random) -> None:
        frozen = stage.all_of(stage.head if head else stage.worker(dice))
        signalled(frozen, STOP)
        time.sleep(seconds)
        signalled(frozen, GO_ON)

    return strike


def slows(stage: Unattended, _: random.Random) -> None:
    """A rank of the policy computes at a third of its speed for 20 s."""
    slow = stage.of("policy")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        signalled(slow, STOP)
        time.sleep(0.1)
        signalled(slow, GO_ON)
        time.sleep(0.05)


def in_mood(mood: Mood) -> Callable[[Unattended, random.Random], object]:
    def strike(stage: Unattended, _: random.Random) -> None:
        stage.reward.mood = mood
        time.sleep(3)
        stage.reward.mood = Mood.WELL

    return strike


BLOWS = (
    Blow("head-gone", "the head is gone for ever", lambda stage, _: stage.lose(stage.head)),
    Blow(
        "worker-gone",
        "a worker or the spare is gone for ever",
        lambda stage, dice: stage.lose(stage.worker(dice)),
    ),
    Blow("head-frozen", "all of the head is frozen for 25 s", freezes(25, head=True)),
    Blow("worker-frozen", "all of a worker is frozen for 25 s", freezes(25, head=False)),
    Blow("straggler", "a rank of the policy is slow for 20 s", slows),
    Blow("driver-killed", "the driver is killed", sends("driver", KILL)),
    Blow("policy-killed", "a rank of the policy is killed", sends("policy", KILL)),
    Blow("critic-killed", "a rank of the critic is killed", sends("critic", KILL)),
    Blow("engine-killed", "a rollout engine is killed", sends("engine", KILL)),
    Blow("policy-stopped", "a rank of the policy stops for ever", sends("policy", STOP)),
    Blow("gcs-killed", "Ray's global control store is killed", sends("gcs", KILL)),
    Blow("reward-error", "the reward server answers 500 for 3 s", in_mood(Mood.ERROR)),
)


def blows(dice: random.Random) -> Iterator[tuple[float, Blow]]:
    """Yield seconds of training and the blow after them, without end.

    In each round every blow falls once.
    """
    while True:
        for blow in dice.sample(BLOWS, len(BLOWS)):
            yield dice.uniform(0, LONGEST_PAUSE), blow


def play(root: Path, seed: int, minutes: float) -> bool:
    """Return whether the run has survived all that begins within so many minutes, and is whole."""
    data = make_data(root / "data")
    with RewardServer() as reward:
        stage = Unattended(root / "stage", data, reward)
        try:
            stage.start(*range(1 + WORKERS + SPARES))
            stage.event("checkpoint", within=BOOT_SECONDS + 200)
            return suffer(stage, seed, minutes) and ends_well(stage, root)
        except AssertionError as error:
            print(f"     NOT SURVIVED (seed {seed}): {error}", flush=True)
            return False
        finally:
            stage.close()


def suffer(stage: Unattended, seed: int, minutes: float) -> bool:
    """Strike until the time is over. Raises AssertionError where a blow is not survived."""
    end, targets = time.monotonic() + 60 * minutes, random.Random(seed)
    for number, (pause, blow) in enumerate(blows(random.Random(seed)), start=1):
        stage.until(stage.is_whole, "whole roll", within=DEADLINE)
        time.sleep(pause)
        if time.monotonic() > end:
            print(f"seed {seed}: {number - 1} blows, step {stage.step}, no scar", flush=True)
            return True
        print(f"{number:3}. after {pause:.1f} s: {blow.sentence}", flush=True)
        began, since = time.monotonic(), timestamp()
        blow.strike(stage, targets)
        newest = newest_step(stage)
        stage.until(
            lambda newest=newest: newest_step(stage) > newest + 1,  # type: ignore[misc]
            f"new step after: {blow.sentence}",
            within=DEADLINE,
        )
        assert_kept(stage, after=since)
        assert (found := stage.faults()) == [], found
        assert (orphans := stage.orphans()) == [], orphans
        seconds = time.monotonic() - began
        print(f"     a new step after {seconds:.0f} s; node {stage.head} leads", flush=True)
        stage.another_comes()
    raise AssertionError("the dice have no end")


def ends_well(stage: Unattended, root: Path) -> bool:
    """Return whether it saves and ends when asked, with the weights of an undisturbed run."""
    stage.terminate(stage.head)
    stage.exit_codes(within=120)
    step = stage.step
    undisturbed = train_alone(stage.data, root / "undisturbed", step)
    same = numbers(stage.run, step) == undisturbed
    print(f"step {step}: the weights are {'' if same else 'NOT '}an undisturbed run's", flush=True)
    return same and stage.faults() == [] and stage.left() == []


if __name__ == "__main__":
    sys.exit(chaos.command(play, __doc__, 15.0))
