"""Faults of a cluster in which other nodes take the places of those that are lost, or slow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from contract.launch.places import MOVED
from entrypoint.run.flight_record.time_accounting import SLOW_LEFT
from tests.container.cluster import ENDLESS
from tests.container.faults.fault import DIED, Fault
from tests.container.faults.table_containers import BOOT_SECONDS, Containers
from tests.support.podman import podman

ASKS = "touch /checkpoints/asked-for-{node}"
"""Stands for a program of a cloud: the test starts a container for each file."""
A_FIFTH = 0.2
"""Of a CPU. A node has little else to do than its rank, which takes longer than that."""


class Spared(Containers):
    """Two workers, each with a rank of the policy, and a spare."""

    workers, spares = 2, 1
    flags: ClassVar[Sequence[str]] = ()
    variables: ClassVar[Mapping[str, str]] = {}

    def boot(self) -> None:
        job = (*ENDLESS, "--remote_rm_url", "arithmetic", "--actor_num_nodes", "2", *self.flags)
        own = {"ROLLCALL_SPARE_WORKERS": str(self.spares), "ROLLCALL_HANG_TIMEOUT": "45"}
        self._newest = 0
        self.head(*job, workers=self.workers, **own, **self.variables)
        for _ in range(self.workers + self.spares):
            self.another()
        self.watch.goes_on(within=BOOT_SECONDS)
        self.watch.event("checkpoint", within=60)

    def another(self) -> None:
        """A machine that was never there comes."""
        self._newest += 1
        self.worker(self._newest)

    def with_spare(self) -> None:
        """Wait for the spare; another machine comes if there is none."""
        if len(self._running()) < self.workers + self.spares:
            self.another()
        self.until(lambda: bool(self._state()["spares"]), "spare", within=BOOT_SECONDS)

    def holder(self) -> str:
        """The worker that has a rank of the policy; the head has the other one."""
        layout = self.events("layout")[-1]["sentence"]
        (ranks,) = re.findall(r"policy: [^;]*", layout)
        (name,) = re.findall(r"worker-\d+", ranks)
        moves = {e["details"]["lost"]: e["details"]["node"] for e in self.events(MOVED)}
        while name not in self._running():
            name = moves[name]
        return str(name)

    def lose(self) -> str:
        """A worker's machine is gone for ever; return its name."""
        name = self.holder()
        self.nodes.pop(name).remove()
        return name

    def _running(self) -> list[str]:
        return [n for n, node in self.nodes.items() if n.startswith("worker-") and node.running]

    def _state(self) -> dict[str, list[str]]:
        asked = self.nodes["head"].execute("rollcall", "status", "--json")
        state: dict[str, list[str]] = json.loads(asked.stdout)
        return state


class Slowed(Spared):
    """A head and a worker with a rank each, and a spare for a node that becomes slow.

    More passes over the samples make an update longer than the moments for which a CPU is given.
    """

    workers = 1
    flags = ("--max_epochs", "4")
    variables: ClassVar[Mapping[str, str]] = {"ROLLCALL_STRAGGLERS": "replace"}


class Brought(Spared):
    """No spare: a program on the head, whichever node that is, asks for another machine."""

    spares = 0
    variables: ClassVar[Mapping[str, str]] = {"ROLLCALL_REPLACE_COMMAND": ASKS}

    def is_whole(self) -> bool:
        """Whether a step was finished after a roll of all workers under the head that leads now."""
        move, roll, step = (self.events(kind)[-1] for kind in ("head-moved", "roll", "step"))
        there = len(roll["details"]["present"]) == self.workers
        return there and bool(move["at"] < roll["at"] < step["at"])

    def asked_for(self) -> list[str]:
        """The lost nodes in whose places machines were asked for."""
        found = self.run.root.glob("asked-for-*")
        return sorted(path.name.removeprefix("asked-for-") for path in found)


class Unattended(Brought):
    """Also a lost head needs nobody."""

    variables: ClassVar[Mapping[str, str]] = {
        "ROLLCALL_REPLACE_COMMAND": ASKS,
        "ROLLCALL_HEAD_FAILOVER": "auto",
    }


def is_lost(cluster: Spared) -> None:
    cluster.with_spare()
    cluster.watch.goes_on(within=30)
    cluster.lose()


def becomes_slow(cluster: Spared) -> None:
    cluster.with_spare()
    cluster.watch.goes_on(within=30)
    podman("update", f"--cpus={A_FIFTH}", cluster.nodes[cluster.holder()].id)


def the_slow_one_leaves(cluster: Spared) -> None:
    slow = cluster.holder()
    left = cluster.watch.event(SLOW_LEFT, within=180)
    assert left["details"]["node"] == slow, left
    assert " times as long as its peers for the same work" in left["sentence"]
    assert cluster.nodes[slow].exit_code(within=60) == 76


def is_lost_for_good(cluster: Spared) -> None:
    cluster.lose()


def one_that_was_asked_for_comes(cluster: Spared) -> None:
    assert isinstance(cluster, Brought)
    cluster.until(lambda: bool(cluster.asked_for()), "request", within=60)
    (needed,) = cluster.events("node-needed")
    assert cluster.asked_for() == [needed["details"]["node"]]
    cluster.another()
    cluster.watch.event("replace", within=10, after=1)
    assert [e["details"].get("exit_code") for e in cluster.events("replace")] == [None, 0]


FAULTS: tuple[tuple[type[Spared], Fault[Spared]], ...] = (
    (
        Spared,
        Fault(
            name="spare-worker-for-ever",
            sentence="a worker is lost for good, and a spare is there",
            inject=is_lost,
            deadline=90,
            restarts=False,
        ),
    ),
    (
        Slowed,
        Fault(
            name="spare-worker-slow",
            sentence="a worker gets a fifth of a CPU, and leaves for a spare",
            inject=becomes_slow,
            heal=the_slow_one_leaves,
            deadline=240,
        ),
    ),
    (
        Brought,
        Fault(
            name="spare-worker-brought",
            sentence="a worker is lost for good, and `ROLLCALL_REPLACE_COMMAND` brings another",
            inject=is_lost_for_good,
            heal=one_that_was_asked_for_comes,
            deadline=120,
            classes=DIED,
            restarts=None,
        ),
    ),
)
