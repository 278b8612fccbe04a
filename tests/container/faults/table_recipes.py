"""The fault matrix of the recipes `torchrun`, `trl` and `command`: the same rows for each."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping

from tests.container.faults import disk
from tests.container.faults.fault import DIED, HUNG, LOST, Fault
from tests.container.faults.machine import do
from tests.container.faults.recipe_containers import RecipeContainers
from tests.container.faults.table_containers import (
    FIRST,
    HEAD,
    SECOND,
    asked,
    drops,
    killed,
    started,
)
from tests.support.recipe_jobs import COMMAND, TORCHRUN, TRL, RecipeJob

JOBS = {job.recipe: job for job in (TORCHRUN, TRL, COMMAND)}
FULL = DIED | {"storage"}
"""A save that fails for want of space also breaks the collectives of the other ranks."""

Act = Callable[[RecipeContainers], object]


def send(role: str, number: signal.Signals) -> Act:
    return lambda cluster: cluster.send(role, number)


def dies_while_saving(cluster: RecipeContainers) -> None:
    """The process that saves is killed as soon as a checkpoint has begun that is not whole."""
    known = set(cluster.checkpoints())
    (saver,) = cluster.of("saver")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        begun = [path for path in cluster.checkpoints() if path not in known]
        if begun and not cluster.is_whole(begun[0]):
            do("kill", "-9", str(saver), check=False)
            return
        known.update(begun)
        time.sleep(0.001)
    raise AssertionError("no checkpoint was begun")


def is_lost(name: str) -> Act:
    """A machine ends without a word: its peers hear nothing, also not that a connection ends."""

    def act(cluster: RecipeContainers) -> None:
        drops(name)(cluster)
        cluster.nodes.pop(name).remove()

    return act


def filler(cluster: RecipeContainers) -> None:
    disk.fill(cluster.run.root / "filler")


def make_room(cluster: RecipeContainers) -> None:
    (cluster.run.root / "filler").unlink()


def rows(job: RecipeJob) -> Iterator[Fault[RecipeContainers]]:
    driver, rank = ("program", "actor") if job.recipe == "command" else ("driver", "rank")
    who = {"driver": f"the {driver} on the head", "rank": f"{rank} 1, on a worker,"}
    yield from _deaths(job.recipe, who)
    yield from _nodes(job.recipe)
    for role in who:
        yield Fault(
            name=f"{job.recipe}-{role}-frozen",
            sentence=f"{who[role]} is stopped for ever (ROLLCALL_HANG_TIMEOUT={job.hang_seconds})",
            inject=send(role, signal.SIGSTOP),
            deadline=job.hang_seconds + 180,
            classes=HUNG,
        )


def _deaths(name: str, who: Mapping[str, str]) -> Iterator[Fault[RecipeContainers]]:
    yield Fault(
        name=f"{name}-worker-killed",
        sentence="a worker's container is killed and started again",
        inject=killed(FIRST),
        heal=started(FIRST),
        deadline=180,
        classes=DIED,
    )
    yield Fault(
        name=f"{name}-driver-killed",
        sentence=f"{who['driver']} is killed",
        inject=send("driver", signal.SIGKILL),
        deadline=120,
        classes=DIED,
    )
    yield Fault(
        name=f"{name}-rank-killed",
        sentence=f"{who['rank']} is killed",
        inject=send("rank", signal.SIGKILL),
        deadline=120,
        classes=DIED,
    )
    yield Fault(
        name=f"{name}-saver-killed",
        sentence="the process that saves is killed in the middle of a checkpoint",
        inject=dies_while_saving,
        deadline=180,
        classes=DIED,
    )


def _nodes(name: str) -> Iterator[Fault[RecipeContainers]]:
    yield Fault(
        name=f"{name}-head-killed",
        sentence="the head's container is killed and started again",
        inject=killed(HEAD),
        heal=started(HEAD),
        deadline=180,
    )
    yield Fault(
        name=f"{name}-worker-lost",
        sentence="a worker's machine is lost without a word, and another with its name comes",
        inject=is_lost(SECOND),
        heal=lambda cluster: cluster.join(2),  # with another address
        deadline=240,
        classes=DIED | HUNG,
    )
    yield Fault(
        name=f"{name}-disk-full",
        sentence="the run directory's disk is full for 8 s",
        inject=filler,
        heal=make_room,
        after=8,
        deadline=180,
        classes=FULL,
    )
    yield Fault(
        name=f"{name}-sigterm",
        sentence="SIGTERM to the head: all save, end with 143, and are started again",
        inject=RecipeContainers.stop,
        heal=RecipeContainers.start_all,
        deadline=240,
    )
    yield Fault(
        name=f"{name}-worker-frozen",
        sentence="a worker's container is frozen for 30 s",
        inject=asked("pause", FIRST),
        heal=asked("unpause", FIRST),
        after=30,
        deadline=240,
        classes=HUNG | LOST,
        restarts=None,
    )
    yield Fault(
        name=f"{name}-head-frozen",
        sentence="the head's container is frozen for 30 s",
        inject=asked("pause", HEAD),
        heal=asked("unpause", HEAD),
        after=30,
        deadline=240,
        classes=HUNG | LOST,
        restarts=None,
    )


AGAINST = ("worker-killed", "worker-lost")
"""Also played against shell loops."""
FAULTS = {
    name: {fault.name.removeprefix(f"{name}-"): fault for fault in rows(job)}
    for name, job in JOBS.items()
}
"""Recipe → row → fault."""
ROWS = tuple(FAULTS["torchrun"])
