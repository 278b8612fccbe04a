"""Faults of containers, their network and their memory, one after the other in one cluster."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from contract.manifest import newest_checkpoint
from tests.container.clock import WrongClock
from tests.container.cluster import ENDLESS, HEAD_POD_ID, SHORT, Cluster
from tests.container.faults import checker, results
from tests.container.faults.fault import DIED, HUNG, LOST, Fault, undergo
from tests.container.faults.machine import do
from tests.support.podman import IMAGE, Container, missing, podman

pytestmark = [pytest.mark.timeout(400)]

BOOT_SECONDS = 120
MAX_RESTARTS = 3
HEAD, FIRST, SECOND = "head", "worker-1", "worker-2"


class Containers(Cluster):
    """A cluster as faults see it."""

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
        """A container that is no node, under its name."""
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
            fast=True,
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
        sentence="the network of a worker is cut for ever, and after 30 s another comes",
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
FAST = [pytest.param(f, id=f.name, marks=pytest.mark.container) for f in FAULTS if f.fast]
SLOW = [pytest.param(f, id=f.name, marks=pytest.mark.faults) for f in FAULTS if not f.fast]


class Standing:
    """A cluster that trains: the one that outlived the fault before, else a new one."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data
        self._stack = ExitStack()
        self._cluster: Containers | None = None
        self._count = 0

    def cluster(self) -> Containers:
        if self._cluster is None or not self._cluster.trains():
            self.close()
            self._count += 1
            new = Containers(self.root / str(self._count), self.data)
            self._stack.enter_context(new)
            new.boot()
            self._cluster = new
        return self._cluster

    def close(self) -> None:
        self._stack.close()
        self._cluster = None


@pytest.fixture(scope="module")
def standing(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Standing]:
    if reason := missing():
        pytest.skip(reason)
    data = request.getfixturevalue("data")
    standing = Standing(tmp_path_factory.mktemp("containers"), data)
    yield standing
    standing.close()


@pytest.mark.parametrize("fault", [*FAST, *SLOW])
def test_it_is_survived_in_time_and_the_run_shows_no_scar(
    standing: Standing, fault: Fault[Containers]
) -> None:
    results.keep(fault.sentence, undergo(standing.cluster(), fault))


@pytest.mark.container
def test_podman_stop_of_the_head_ends_all_with_143_and_a_whole_checkpoint_within_30_seconds(
    standing: Standing,
) -> None:
    cluster = standing.cluster()
    cluster.nodes[HEAD].stop(grace=30)
    assert set(cluster.exit_codes(within=30).values()) == {143}
    assert newest_checkpoint(cluster.run.checkpoints) == cluster.watch.step
    assert cluster.faults() == []


@pytest.mark.faults
def test_a_second_head_is_refused_while_the_first_lives_though_no_node_reaches_it(
    standing: Standing,
) -> None:
    cluster = standing.cluster()
    drops(HEAD)(cluster)
    try:
        rival = Container.start(
            f"{cluster.name}-rival",
            *("--shm-size=512m", "--pids-limit=-1", "--env=EXPECTED_WORKERS=0"),
            f"--volume={cluster.run.root}:/checkpoints",
            f"--volume={cluster.data}:/data:ro",
            *(IMAGE, "--", *ENDLESS, "--remote_rm_url", "arithmetic"),
        )
        cluster.nodes["rival"] = rival
        assert rival.exit_code(within=30) == 73
        assert "is held by a living head" in rival.said
    finally:
        lets_through(HEAD)(cluster)
    cluster.nodes.pop("rival").remove()
    cluster.watch.goes_on(within=120)
    assert cluster.faults() == []


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_a_clock_that_jumps_ahead_and_back_by_two_hours_costs_no_attempt(
    tmp_path: Path, data: Path
) -> None:
    with Containers(tmp_path / "cluster", data) as cluster:
        clock = WrongClock.made_in(cluster.run.root)
        cluster.head(
            *(*ENDLESS, "--remote_rm_url", "arithmetic"),
            workers=0,
            **clock.variables("/checkpoints"),
        )
        cluster.watch.goes_on(within=BOOT_SECONDS)
        for jump in (7_200, -7_200, 0):
            clock.jump(jump)
            steps = len(cluster.events("step"))
            cluster.watch.event("step", within=40, after=steps + 20)
        hours = {row["at"][:13] for row in cluster.events("step")}
        assert len(hours) >= 3, "the clock did not jump"
        assert len(cluster.events("attempt")) == 1
        assert cluster.faults() == []


@pytest.mark.faults
def test_a_worker_that_reaches_the_head_late_by_a_tenth_of_a_second_each_way_trains(
    tmp_path: Path, data: Path
) -> None:
    with Containers(tmp_path / "cluster", data) as cluster:
        shutil.copy(Path(__file__).with_name("delay.py"), cluster.run.root)
        far = (f"{HEAD_POD_ID}.runpod.internal", "0.1", "6379", "8265", "8267")
        proxy = ("python", "/checkpoints/delay.py", *far)
        cluster.helper("far", *proxy)
        cluster.head(*SHORT, "--remote_rm_url", "arithmetic", workers=1)
        cluster.worker(1, ROLLCALL_HEAD_ADDRESS="far")
        assert cluster.nodes[HEAD].exit_code(within=150) == 0
        assert cluster.nodes[FIRST].exit_code(within=30) == 0
        assert cluster.faults() == []
