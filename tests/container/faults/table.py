"""The fault matrix of three nodes on one machine: what is done to a run, and what must follow.

Faults of the network, of memory and of whole containers are in test_containers.py.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster.harness import HEAD
from tests.container.faults.fault import Fault
from tests.container.faults.reward import Mood
from tests.container.faults.stage import HANG_SECONDS, Stage
from trainer.contract import MANIFEST

Act = Callable[[Stage], object]

FIRST, SECOND = 1, 2
KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
DIED = frozenset({"unknown", "node_lost", "collective"})
LOST = frozenset({"node_lost"})
HUNG = frozenset({"hang", "unknown", "collective"})


def send(role: str, number: signal.Signals) -> Act:
    return lambda stage: stage.send(role, number)


def kill_node(number: int) -> Act:
    return lambda stage: stage.kill(number)


def start_node(number: int) -> Act:
    return lambda stage: stage.start(number)


def both(*acts: Act) -> Act:
    def act(stage: Stage) -> None:
        for one in acts:
            one(stage)

    return act


def is_in_mood(mood: Mood) -> Act:
    def act(stage: Stage) -> None:
        stage.reward.mood = mood

    return act


def entrypoint_dies(number: int) -> Act:
    """The node's process 1 alone, as where no container ends with it."""

    def act(stage: Stage) -> None:
        stage.send(f"entrypoint-{number}", KILL)
        stage.nodes[number].wait(10)

    return act


def spoilt(spoil: Callable[[Path], None]) -> Act:
    """The newest checkpoint is, and then the driver is killed."""

    def act(stage: Stage) -> None:
        stage.event("checkpoint", within=60, after=len(stage.events("checkpoint")) + 1)
        newest = stage.checkpoints()[0]
        stage.send("driver", STOP)  # or it writes the next one meanwhile
        spoil(newest)
        stage.damaged(newest)
        stage.send("driver", KILL)

    return act


def truncate(checkpoint: Path) -> None:
    path = checkpoint / "policy.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(checkpoint: Path) -> None:
    path = checkpoint / "critic.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "policy.pt").unlink()


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


def tear_the_manifest(checkpoint: Path) -> None:
    path = checkpoint / MANIFEST
    path.write_text(path.read_text()[:40])


def empty(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def dies_while_saving(stage: Stage) -> None:
    """The driver is killed as soon as a checkpoint has begun that is not confirmed."""
    confirmed = set(stage.run.checkpoints.glob("global_step_*"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in stage.run.checkpoints.glob("global_step_*"):
            if path not in confirmed and not (path / MANIFEST).exists():
                return stage.send("driver", KILL)
            confirmed.add(path)
        time.sleep(0.0005)
    raise AssertionError("no checkpoint was begun")


def dies_again_while_it_starts(stage: Stage) -> None:
    attempts = len(stage.events("attempt"))
    stage.send("driver", KILL)
    stage.event("attempt", within=30, after=attempts)
    stage.until(lambda: bool(stage.of("driver")), "driver", within=30)
    time.sleep(1.0)
    stage.send("driver", KILL)


def worker_dies_while_the_driver_starts(stage: Stage) -> None:
    attempts = len(stage.events("attempt"))
    stage.send("driver", KILL)
    stage.event("attempt", within=30, after=attempts)
    stage.kill(SECOND)


def ends_and_saves(stage: Stage) -> None:
    """Every node that lives ends with 143, within the grace period, and leaves nothing."""
    living = [number for number, node in stage.nodes.items() if node.running]
    codes = stage.exit_codes(within=40)
    assert {codes[number] for number in living} == {143}, stage.consoles()
    assert stage.left() == []


def is_told_to_stop(wait_for: Act) -> Act:
    def act(stage: Stage) -> None:
        wait_for(stage)
        stage.terminate(HEAD)
        ends_and_saves(stage)

    return act


def until_the_driver_starts(stage: Stage) -> None:
    attempts = len(stage.events("attempt"))
    stage.send("driver", KILL)
    stage.event("attempt", within=30, after=attempts)


def until_the_failure(stage: Stage) -> None:
    failures = len(stage.events("failure"))
    stage.send("driver", KILL)
    stage.event("failure", within=30, after=failures)


def until_a_checkpoint(stage: Stage) -> None:
    known = set(stage.run.checkpoints.glob("global_step_*"))
    stage.until(
        lambda: bool(set(stage.run.checkpoints.glob("global_step_*")) - known),
        "checkpoint begun",
        within=60,
    )


def until_the_roll_call(stage: Stage) -> None:
    """A worker is missing, and the head waits for it."""
    rolls = len(stage.events("failure"))
    stage.kill(SECOND)
    stage.event("failure", within=60, after=rolls)
    time.sleep(2.0)


def whenever(stage: Stage) -> None:
    """At no moment in particular."""


def told_by_file(number: int) -> Act:
    return lambda stage: stage.preempt_file(number).touch()


def leaves(number: int, tell: Act) -> Act:
    def act(stage: Stage) -> None:
        tell(stage)
        assert stage.nodes[number].wait(40) == 143, stage.consoles()

    return act


def all_leave(tell: Act) -> Act:
    return both(tell, ends_and_saves)


ALL = start_node(HEAD), start_node(FIRST), start_node(SECOND)


def deaths() -> Iterator[Fault[Stage]]:
    for role, sentence, classes, deadline in (
        ("driver", "the training driver is killed", DIED, 45),
        ("policy", "a rank of the policy is killed", DIED, 60),
        ("critic", "a rank of the critic is killed", DIED, 60),
        ("engine", "a rollout engine is killed", DIED, 60),
        ("raylet-1", "the Ray daemon of a worker is killed", DIED, 90),
        ("raylet-0", "the Ray daemon of the head is killed", LOST, 90),
        ("gcs", "Ray's global control store is killed", LOST, 90),
    ):
        yield Fault(
            name=f"{role}-killed",
            sentence=sentence,
            inject=send(role, KILL),
            deadline=deadline,
            classes=classes,
            fast=role in ("driver", "policy", "engine", "raylet-1"),
        )
    for number, who, classes in ((FIRST, "a worker", LOST), (HEAD, "the head", frozenset[str]())):
        yield Fault(
            name=f"entrypoint-{number}-killed",
            sentence=f"the entrypoint of {who} is killed, Ray goes on, and it is started again",
            inject=entrypoint_dies(number),
            heal=start_node(number),
            after=1,
            deadline=120,
            classes=classes,
        )
        yield Fault(
            name=f"node-{number}-killed",
            sentence=f"{who} loses its power and is started again",
            inject=kill_node(number),
            heal=start_node(number),
            after=1,
            deadline=120,
            classes=classes,
        )


def freezes() -> Iterator[Fault[Stage]]:
    for role, sentence, deadline in (
        ("driver", "the training driver is stopped for ever", HANG_SECONDS + 60),
        ("policy", "a rank of the policy is stopped for ever", HANG_SECONDS + 60),
        ("critic", "a rank of the critic is stopped for ever", HANG_SECONDS + 60),
        ("engine", "a rollout engine is stopped for ever", HANG_SECONDS + 60),
        ("raylet-1", "the Ray daemon of a worker is stopped for ever", 150),
        ("raylet-0", "the Ray daemon of the head is stopped for ever", 150),
    ):
        yield Fault(
            name=f"{role}-stopped",
            sentence=sentence,
            inject=send(role, STOP),
            deadline=deadline,
            classes=HUNG | LOST,
        )
    yield Fault(
        name="gcs-stopped",
        sentence="Ray's global control store is stopped for 30 s",
        inject=send("gcs", STOP),
        heal=send("gcs", GO_ON),
        after=30,
        deadline=90,
        restarts=False,
    )
    for number, who in ((FIRST, "a worker"), (HEAD, "the head")):
        yield Fault(
            name=f"entrypoint-{number}-stopped",
            sentence=f"the entrypoint of {who} is stopped for 12 s",
            inject=send(f"entrypoint-{number}", STOP),
            heal=send(f"entrypoint-{number}", GO_ON),
            after=12,
            deadline=120,
            restarts=number == HEAD,
            classes=HUNG | LOST if number == HEAD else frozenset(),
        )
        yield Fault(
            name=f"node-{number}-stopped",
            sentence=f"all of {who} is stopped for 25 s",
            inject=send(f"node-{number}", STOP),
            heal=send(f"node-{number}", GO_ON),
            after=25,
            deadline=150,
            classes=HUNG | LOST,
        )


def rewards() -> Iterator[Fault[Stage]]:
    yield Fault(
        name="reward-refused",
        sentence="the reward server refuses every connection for 3 s",
        inject=lambda stage: stage.reward.stop(),
        heal=lambda stage: stage.reward.start(),
        after=3,
        deadline=30,
        restarts=False,
        fast=True,
    )
    for mood, sentence in (
        (Mood.SLOW, "the reward server takes 6 s for an answer"),
        (Mood.ERROR, "the reward server answers 500 for 3 s"),
        (Mood.GARBAGE, "the reward server answers something else for 3 s"),
        (Mood.SHORT, "the reward server leaves a reward out for 3 s"),
        (Mood.NAN, "the reward server answers NaN for 3 s"),
    ):
        yield Fault(
            name=f"reward-{mood}",
            sentence=sentence,
            inject=is_in_mood(mood),
            heal=is_in_mood(Mood.WELL),
            after=3,
            deadline=30,
            restarts=False,
            fast=mood in (Mood.ERROR, Mood.NAN),
        )


def spoilt_checkpoints() -> Iterator[Fault[Stage]]:
    for name, sentence, spoil in (
        ("truncated", "the newest checkpoint is cut off", truncate),
        ("bit-flipped", "a bit of the newest checkpoint is flipped", flip_a_bit),
        ("file-missing", "a file of the newest checkpoint is missing", lose_a_file),
        ("manifest-missing", "the newest checkpoint has no manifest", lose_the_manifest),
        ("manifest-torn", "the newest checkpoint's manifest is torn", tear_the_manifest),
        ("empty", "the newest checkpoint's directory is empty", empty),
    ):
        yield Fault(
            name=f"checkpoint-{name}",
            sentence=f"{sentence}, and the driver is killed",
            inject=spoilt(spoil),
            deadline=90,
            classes=DIED,
            fast=name == "bit-flipped",
        )


def several() -> Iterator[Fault[Stage]]:
    yield Fault(
        name="driver-and-worker-killed",
        sentence="the driver and a worker are killed at once",
        inject=both(send("driver", KILL), kill_node(SECOND)),
        heal=start_node(SECOND),
        after=1,
        deadline=120,
        classes=DIED,
        fast=True,
    )
    yield Fault(
        name="driver-killed-while-it-starts",
        sentence="the driver is killed, and killed again while it starts",
        inject=dies_again_while_it_starts,
        deadline=90,
        classes=DIED,
    )
    yield Fault(
        name="worker-killed-while-the-driver-starts",
        sentence="a worker is killed while the job recovers from a killed driver",
        inject=worker_dies_while_the_driver_starts,
        heal=start_node(SECOND),
        after=1,
        deadline=150,
        classes=DIED,
    )
    yield Fault(
        name="driver-killed-while-it-saves",
        sentence="the driver is killed in the middle of a checkpoint",
        inject=dies_while_saving,
        deadline=120,
        classes=DIED,
    )
    yield Fault(
        name="reward-refused-and-worker-killed",
        sentence="a worker is killed while the reward server refuses connections",
        inject=both(lambda stage: stage.reward.stop(), kill_node(FIRST)),
        heal=both(lambda stage: stage.reward.start(), start_node(FIRST)),
        after=4,
        deadline=120,
        classes=DIED,
    )


def notices() -> Iterator[Fault[Stage]]:
    for name, sentence, tell in (
        ("sigterm", "gets SIGTERM", send("entrypoint-1", signal.SIGTERM)),
        ("sigusr1", "gets SIGUSR1, as from Slurm", send("entrypoint-1", signal.SIGUSR1)),
        ("preempt-file", "finds ROLLCALL_PREEMPT_FILE", told_by_file(FIRST)),
    ):
        yield Fault(
            name=f"worker-{name}",
            sentence=f"a worker {sentence}, leaves with 143, and another comes",
            inject=leaves(FIRST, tell),
            heal=start_node(FIRST),
            deadline=120,
            classes=LOST,
            fast=name == "preempt-file",
        )
    for name, sentence, tell in (
        ("sigusr1", "gets SIGUSR1, as from Slurm", send("entrypoint-0", signal.SIGUSR1)),
        ("preempt-file", "finds ROLLCALL_PREEMPT_FILE", told_by_file(HEAD)),
    ):
        yield Fault(
            name=f"head-{name}",
            sentence=f"the head {sentence}: all save, end with 143, and are started again",
            inject=all_leave(tell),
            heal=both(*ALL),
            deadline=150,
        )
    for name, sentence, wait_for, classes in (
        ("in-a-step", "in the middle of a step", whenever, frozenset[str]()),
        ("while-it-saves", "while a checkpoint is written", until_a_checkpoint, frozenset[str]()),
        ("while-it-starts", "while the driver starts", until_the_driver_starts, DIED),
        ("in-recovery", "between two attempts", until_the_failure, DIED),
        ("in-roll-call", "while it waits for a worker", until_the_roll_call, LOST),
    ):
        yield Fault(
            name=f"sigterm-{name}",
            sentence=f"SIGTERM to the head {sentence}: all end with 143, and are started again",
            inject=is_told_to_stop(wait_for),
            heal=both(*ALL),
            deadline=180,
            classes=classes,
        )


MATRIX: tuple[Fault[Stage], ...] = (
    *rewards(),
    *deaths(),
    *spoilt_checkpoints(),
    *several(),
    *notices(),
    *freezes(),
)
