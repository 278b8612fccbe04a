"""Faults of containers, their network and their memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tests.container.cluster import ENDLESS, Cluster
from tests.container.faults import checker
from tests.container.faults.fault import DIED, HUNG, LOST, Fault
from tests.container.faults.machine import do
from tests.support.podman import podman

BOOT_SECONDS = 120
MAX_RESTARTS = 3
HEAD, FIRST, SECOND = "head", "worker-1", "worker-2"


class Containers(Cluster):
    """A cluster as faults see it. Root in it may do what a fault needs."""

    user = "0:0"

    stands_by = True

    def boot(self) -> None:
        job = (*ENDLESS, "--remote_rm_url", "arithmetic", "--dist_timeout", "45")
        self.head(*job, ROLLCALL_HANG_TIMEOUT="45")
        self.worker(1)
        self.worker(2)
        self.watch.goes_on(within=BOOT_SECONDS)
        self.watch.event("checkpoint", within=60)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return self.watch.events(kind)

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        self.watch.until(done, what, within=within)

    def faults(self) -> list[str]:
        token = self.run.token.read_text().strip()
        found = checker.faults(self.run, max_restarts=MAX_RESTARTS, secrets=[token])
        said = {f"console of {name}": node.said for name, node in self.nodes.items()}
        return [*found, *checker.told(said, [token])]

    def orphans(self) -> Sequence[str]:
        """Containers of it that run, and that no node is."""
        names = podman("ps", f"--filter=name={self.name}", "--format={{.Names}}").stdout.split()
        return sorted(set(names) - {node.name for node in self.nodes.values()})

    def trains(self) -> bool:
        try:
            self.watch.goes_on(within=10)
        except AssertionError:
            return False
        return True

    def helper(self, name: str, *command: str) -> None:
        """A container that is not a node, under its name."""
        self._start(name, {}, *command, alias=name)

    def inside(self, node: str, *command: str) -> None:
        """A command of this machine, in the node's network."""
        pid = podman("inspect", "--format={{.State.Pid}}", self.nodes[node].id).stdout.strip()
        do("nsenter", f"--net=/proc/{pid}/ns/net", *command)


Act = Callable[[Containers], object]


def killed(name: str) -> Act:
    return lambda cluster: cluster.nodes[name].kill()


def started(name: str) -> Act:
    return lambda cluster: cluster.nodes[name].start_again()


def asked(verb: str, name: str, *words: str) -> Act:
    return lambda cluster: podman(verb, *words, cluster.nodes[name].id)


def drops(node: str, *which: str) -> Act:
    """Its packets, both ways: all of them, or those that `which` names."""

    def act(cluster: Containers) -> None:
        for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
            rule = ("-A", chain, "!", side, "lo", *which, "-j", "DROP")
            cluster.inside(node, "iptables", *rule)

    return act


def lets_through(node: str) -> Act:
    return lambda cluster: cluster.inside(node, "iptables", "-F")


def replaced(cluster: Containers) -> None:
    """Another worker comes in the place of one that is never heard of again."""
    cluster.nodes.pop(SECOND).remove()
    cluster.worker(3)


def narrow(cluster: Containers) -> None:
    shape = ("tbf", "rate", "2mbit", "burst", "32kb", "latency", "400ms")
    cluster.inside(FIRST, "tc", "qdisc", "add", "dev", "eth0", "root", *shape)


def wide(cluster: Containers) -> None:
    cluster.inside(FIRST, "tc", "qdisc", "del", "dev", "eth0", "root")


HOG = "import time; held = bytearray(80 << 20); time.sleep(60)"
HOGS = 5
STAT = "cat /sys/fs/cgroup/memory.stat || cat /sys/fs/cgroup/memory/memory.stat"


def starve(name: str) -> Act:
    """The node's memory is as good as used up when some more processes come, each smaller than
    those of the training: the kernel ends the largest."""

    def act(cluster: Containers) -> None:
        node = cluster.nodes[name]
        rows = dict(row.split() for row in node.execute("sh", "-c", STAT).stdout.splitlines())
        held = [int(rows.get(key, 0)) for key in ("anon", "rss", "shmem")]
        podman("update", f"--memory={sum(held) + (150 << 20)}", node.id)
        for _ in range(HOGS):
            podman("exec", "--detach", node.id, "python", "-c", HOG)

    return act


def feed(name: str) -> Act:
    """Ends what starves it, once the head has said that the kernel killed a process there."""

    def act(cluster: Containers) -> None:
        def told() -> bool:
            return any(e["details"]["node"] == name for e in cluster.events("oom-kill"))

        cluster.until(told, f"{name} is said to be out of memory", within=20)
        node = cluster.nodes[name]
        for pid in node.pids("bytearray"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        podman("update", "--memory=4g", node.id)

    return act


WORKER_AND_HEAD = ((FIRST, "worker", "a worker's"), (HEAD, "head", "the head's"))


def deaths() -> Iterator[Fault[Containers]]:
    for node, name, whose in WORKER_AND_HEAD:
        yield Fault(
            name=f"container-{name}-killed",
            sentence=f"{whose} container is killed and started again",
            inject=killed(node),
            heal=started(node),
            deadline=90 if node == FIRST else 120,
            classes=DIED if node == FIRST else frozenset(),
            fast=node != FIRST,
            restarts=None if node == FIRST else True,
        )


def freezes() -> Iterator[Fault[Containers]]:
    for node, name, whose in WORKER_AND_HEAD:
        yield Fault(
            name=f"container-{name}-frozen",
            sentence=f"{whose} container is frozen for 30 s",
            inject=asked("pause", node),
            heal=asked("unpause", node),
            after=30,
            deadline=150,
            classes=HUNG | LOST,
            restarts=None,  # workers that are back soon enough take what they lost meanwhile
        )


def shortages() -> Iterator[Fault[Containers]]:
    for node, name, whose in WORKER_AND_HEAD:
        yield Fault(
            name=f"memory-{name}",
            sentence=f"{whose} container runs out of memory, and the kernel kills a process there",
            inject=starve(node),
            heal=feed(node),
            after=6,
            deadline=120 if node == FIRST else 150,
            classes=DIED | {"host_oom"},
            restarts=None,
        )


LOSSY = ("-m", "statistic", "--mode", "random", "--probability", "0.05")


FAULTS: tuple[Fault[Containers], ...] = (
    *deaths(),
    Fault(
        name="network-worker-5s",
        sentence="the network of a worker is cut for 5 s",
        inject=drops(FIRST),
        heal=lets_through(FIRST),
        after=5,
        deadline=60,
        restarts=False,
    ),
    Fault(
        name="network-worker-lossy",
        sentence="a worker loses one packet of twenty, each way, for 20 s",
        inject=drops(FIRST, *LOSSY),
        heal=lets_through(FIRST),
        after=20,
        deadline=90,
        restarts=None,
    ),
    Fault(
        name="network-worker-narrow",
        sentence="a worker has 2 Mbit/s for 20 s",
        inject=narrow,
        heal=wide,
        after=20,
        deadline=90,
        restarts=None,
    ),
    Fault(
        name="network-worker-for-ever",
        sentence="a worker loses its network for good; a replacement joins after 30 s",
        inject=drops(SECOND),
        heal=replaced,
        after=30,
        deadline=150,
        classes=DIED,
        restarts=None,
    ),
    Fault(
        name="network-head-30s",
        sentence="the network of the head is cut for 30 s",
        inject=drops(HEAD),
        heal=lets_through(HEAD),
        after=30,
        deadline=150,
        classes=DIED,
        restarts=None,
    ),
    *freezes(),
    *shortages(),
)
