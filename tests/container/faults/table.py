"""The fault matrix of three nodes on one machine: what is done to a run, and what must follow.

Faults of the network, of memory and of whole containers are in table_containers.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from tests.container.faults import acts
from tests.container.faults.acts import (
    ALL,
    FIRST,
    GO_ON,
    KILL,
    SECOND,
    STOP,
    both,
    send,
    start_node,
)
from tests.container.faults.fault import DIED, HUNG, LOST, UNDONE, Fault
from tests.container.faults.reward import Mood
from tests.container.faults.stage import HANG_SECONDS, Stage
from tests.container.faults.table_files import (
    damaged_files,
    lost_files,
    others,
    spoilt_checkpoints,
)
from tests.support.node_cluster import HEAD

REPAIRED = frozenset({"policy", "critic", "engine", "raylet-1"})
"""Whose loss the trainer may outlive."""


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
            restarts=None if role in REPAIRED else True,
            fast=role in ("driver", "policy", "engine", "raylet-1"),
        )
    yield Fault(
        name="driver-prints-and-is-killed",
        sentence="the training driver prints 200 MiB at once, and is killed",
        inject=acts.prints_much,
        heal=acts.logs_go,
        deadline=60,
        classes=DIED,
    )
    # A worker that is back before the attempt has ended is not missed any more.
    for number, who, classes in ((FIRST, "a worker", DIED), (HEAD, "the head", UNDONE)):
        yield Fault(
            restarts=None if number == FIRST else True,
            name=f"entrypoint-{number}-killed",
            sentence=f"the entrypoint of {who} is killed, Ray goes on, and it is started again",
            inject=acts.entrypoint_dies(number),
            heal=start_node(number),
            after=1,
            deadline=120,
            classes=classes,
        )
        yield Fault(
            restarts=None if number == FIRST else True,
            name=f"node-{number}-killed",
            sentence=f"{who} loses its power and is started again",
            inject=acts.kill_node(number),
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
            restarts=None if role in REPAIRED else True,
        )
    yield Fault(
        name="gcs-stopped",
        sentence="Ray's global control store is stopped for 30 s",
        inject=send("gcs", STOP),
        heal=send("gcs", GO_ON),
        after=30,
        deadline=120,
        classes=HUNG,
        restarts=None,  # where an actor was just to be made, the job waits for longer than it may
    )
    for number, who in ((FIRST, "a worker"), (HEAD, "the head")):
        yield Fault(
            name=f"entrypoint-{number}-stopped",
            sentence=f"the entrypoint of {who} is stopped for 12 s",
            inject=send(f"entrypoint-{number}", STOP),
            heal=send(f"entrypoint-{number}", GO_ON),
            after=12,
            deadline=120,
            restarts=None if number == HEAD else False,
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
            restarts=None,  # workers that are back soon enough take what they lost meanwhile
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
    )
    for mood, sentence in (
        (Mood.SLOW, "the reward server takes 6 s for an answer"),
        (Mood.ERROR, "the reward server answers 500 for 3 s"),
        (Mood.GARBAGE, "the reward server answers something else for 3 s"),
        (Mood.SHORT, "the reward server leaves a reward out for 3 s"),
        (Mood.LOGIN, "a login proxy before the reward server answers 302 for 3 s"),
        (Mood.AWAY, "a gateway before the reward server answers 404 for 3 s"),
        (Mood.NAN, "the reward server answers NaN for 3 s"),
    ):
        yield Fault(
            name=f"reward-{mood}",
            sentence=sentence,
            inject=acts.is_in_mood(mood),
            heal=acts.is_in_mood(Mood.WELL),
            after=3,
            deadline=30,
            restarts=False,
            fast=mood is Mood.NAN,
        )


def several() -> Iterator[Fault[Stage]]:
    yield Fault(
        name="driver-and-worker-killed",
        sentence="the driver and a worker are killed at once",
        inject=both(send("driver", KILL), acts.kill_node(SECOND)),
        heal=start_node(SECOND),
        after=1,
        deadline=120,
        classes=DIED,
    )
    yield Fault(
        name="driver-killed-while-it-starts",
        sentence="the driver is killed, and killed again while it starts",
        inject=acts.dies_again_while_it_starts,
        deadline=90,
        classes=DIED,
    )
    yield Fault(
        name="worker-killed-while-the-driver-starts",
        sentence="a worker is killed while the job recovers from a killed driver",
        inject=acts.worker_dies_while_the_driver_starts,
        heal=start_node(SECOND),
        after=1,
        deadline=150,
        classes=DIED,
    )
    yield Fault(
        name="driver-killed-while-it-saves",
        sentence="the driver is killed in the middle of a checkpoint",
        inject=acts.dies_while_saving,
        deadline=120,
        classes=DIED,
    )
    yield Fault(
        name="reward-refused-and-worker-killed",
        sentence="a worker is killed while the reward server refuses connections",
        restarts=None,
        inject=both(lambda stage: stage.reward.stop(), acts.kill_node(FIRST)),
        heal=both(lambda stage: stage.reward.start(), start_node(FIRST)),
        after=4,
        deadline=120,
        classes=DIED,
    )


def notices() -> Iterator[Fault[Stage]]:
    for name, sentence, tell in (
        ("sigterm", "gets SIGTERM", send("entrypoint-1", signal.SIGTERM)),
        ("sigusr1", "gets SIGUSR1, as from Slurm", send("entrypoint-1", signal.SIGUSR1)),
        ("preempt-file", "finds ROLLCALL_PREEMPT_FILE", acts.told_by_file(FIRST)),
    ):
        yield Fault(
            name=f"worker-{name}",
            sentence=f"a worker {sentence}, leaves with 143, and another comes",
            inject=acts.leaves(FIRST, tell),
            heal=start_node(FIRST),
            deadline=120,
            classes=LOST,
        )
    for name, sentence, tell in (
        ("sigusr1", "gets SIGUSR1, as from Slurm", send("entrypoint-0", signal.SIGUSR1)),
        ("preempt-file", "finds ROLLCALL_PREEMPT_FILE", acts.told_by_file(HEAD)),
    ):
        yield Fault(
            name=f"head-{name}",
            sentence=f"the head {sentence}: all save, end with 143, and are started again",
            inject=acts.all_leave(tell),
            heal=both(*ALL),
            deadline=150,
        )
    for name, sentence, wait_for, classes in (
        ("in-a-step", "in the middle of a step", acts.whenever, UNDONE),
        (
            "while-it-saves",
            "while a checkpoint is written",
            acts.until_a_checkpoint,
            frozenset[str](),
        ),
        ("while-it-starts", "while the driver starts", acts.until_the_driver_starts, DIED),
        ("in-recovery", "between two attempts", acts.until_the_failure, DIED),
        ("in-roll-call", "while it waits for a worker", acts.until_the_roll_call, LOST),
    ):
        yield Fault(
            name=f"sigterm-{name}",
            sentence=f"SIGTERM to the head {sentence}: all end with 143, and are started again",
            inject=acts.is_told_to_stop(wait_for),
            heal=both(*ALL),
            deadline=180,
            classes=classes,
        )


MATRIX: tuple[Fault[Stage], ...] = (
    *rewards(),
    *deaths(),
    *spoilt_checkpoints(),
    *lost_files(),
    *damaged_files(),
    *others(),
    *several(),
    *notices(),
    *freezes(),
)
