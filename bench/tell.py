"""How soon a person learns of a fault: ten faults of a real run, in four places.

A head and a worker on real Rays run a job on this machine. Each fault is injected into it. The
time counts from the moment at which the head knows: the time of its event in the journal. It ends
when the event is on the page in a real Chromium, in the terminal of `rollcall events -f`, in a
scrape of the metrics, one each second, and with the webhook's server.

Value: the longest of these times.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.result import report
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.process import kill
from tests.support import faulty_job
from tests.support.hook_server import hook_server
from tests.support.node_cluster import HEAD, Cluster, command_line, signalled
from tests.support.time_to_tell import PLACES, Fault, Watchers, measured, mended, watching

TARGET_SECONDS = 3.0
WORKER, UNFIT = 1, 2
BOOT_SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help="parts of their names; none: all of them")
    options = parser.parse_args()
    wanted = [
        fault
        for fault in FAULTS
        if not options.faults or any(part in fault.name for part in options.faults)
    ]
    if not wanted:
        names = ", ".join(fault.name for fault in FAULTS)
        parser.error(f"no fault has {' or '.join(options.faults)} in its name: there are {names}")
    seconds = {}
    with running() as (cluster, watchers):
        print(f"| fault | {' | '.join(PLACES)} |", flush=True)
        for number, fault in enumerate(wanted, 1):
            attempts = len(cluster.events("attempt"))
            told = measured(fault, cluster, watchers)
            seconds[fault.name] = {place: round(told[place], 2) for place in PLACES}
            row = " | ".join(f"{told[place]:.2f}" for place in PLACES)
            print(f"| {fault.name} | {row} |", flush=True)
            if number < len(wanted):
                mended(fault, cluster, attempts)
    worst = max(max(told.values()) for told in seconds.values())
    ok = report(
        "tell", worst, unit="s", target=TARGET_SECONDS, better="lower", detail={"seconds": seconds}
    )
    return 0 if ok else 1


@contextmanager
def running() -> Iterator[tuple[Cluster, Watchers]]:
    """A run that trains on two nodes, with a reward server, and its watchers."""
    with (
        tempfile.TemporaryDirectory(prefix="rollcall-tell-") as root,
        hook_server() as hook,
        PortBlock() as port,
    ):
        server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        cluster = Cluster(
            Path(root) / "cluster",
            1,
            (sys.executable, faulty_job.__file__),
            ROLLCALL_WEBHOOK=hook.url,
            ROLLCALL_HANG_TIMEOUT="60s",
            ROLLCALL_GRACE_SECONDS="20",
            ROLLCALL_NODE_TIMEOUT="60s",  # for Ray; the head knows of a frozen worker after 8 s
            ROLLCALL_PREFLIGHT_SKIP="nodes.collective",
            ROLLCALL_REWARD_COMMAND=shlex.join(server),
            ROLLCALL_REWARD_URL=f"http://127.0.0.1:{port}/",
        )
        cluster.plain = True
        try:
            cluster.start(HEAD, WORKER)
            cluster.goes_on(within=BOOT_SECONDS)
            with watching(cluster, hook) as watchers:
                yield cluster, watchers
        finally:
            cluster.close()


def fails(kind: str) -> Callable[[Cluster], object]:
    return lambda cluster: (cluster.run.root / "fault").write_text(kind)


def driver_dies(cluster: Cluster) -> None:
    kill(cluster.named(HEAD, faulty_job.__file__))


def rank_dies(cluster: Cluster) -> None:
    kill(
        process
        for process in cluster.processes(WORKER)
        if any(word.startswith("ray::Member") for word in command_line(process))
    )


def ray_dies(cluster: Cluster) -> None:
    kill(cluster.named(HEAD, "raylet"))


def reward_server_dies(cluster: Cluster) -> None:
    kill(cluster.named(HEAD, "http.server"))


def unfit_worker_comes(cluster: Cluster) -> None:
    """Its checks find that it has no such network interface."""
    cluster.own[UNFIT] = {"NCCL_SOCKET_IFNAME": "ib0"}
    cluster.start(UNFIT)


def freezes(cluster: Cluster) -> None:
    signalled(of_worker(cluster), signal.SIGSTOP)


def thaws(cluster: Cluster) -> None:
    signalled(of_worker(cluster), signal.SIGCONT)


def of_worker(cluster: Cluster) -> list[psutil.Process]:
    return [psutil.Process(cluster.nodes[WORKER].pid), *cluster.processes(WORKER)]


FAILURES = "rollcall_failures_total"
FAULTS = (
    Fault("the training driver is killed", driver_dies, "failure", f"{FAILURES} unknown"),
    Fault("a rank is killed", rank_dies, "failure", f"{FAILURES} unknown"),
    Fault("the disk is full", fails(faulty_job.FULL_DISK), "failure", f"{FAILURES} storage"),
    Fault("a GPU is lost", fails(faulty_job.GPU_LOST), "failure", f"{FAILURES} gpu_fault"),
    Fault("the job hangs", fails(faulty_job.HANG), "failure", f"{FAILURES} hang"),
    Fault(
        "the reward server is killed",
        reward_server_dies,
        "service",
        "rollcall_repairs_total service",
        ends_attempt=False,
    ),
    Fault(
        "a worker fails its preflight checks",
        unfit_worker_comes,
        "refused",
        "rollcall_refusals_total",
        ends_attempt=False,
    ),
    Fault(
        "a worker is frozen",
        freezes,
        "node-lost",
        "rollcall_node_up worker-1 worker",
        thaws,
        ends_attempt=False,
    ),
    Fault(
        "a worker's machine is lost",
        lambda cluster: cluster.kill(WORKER),
        "failure",
        f"{FAILURES} node_lost",
        lambda cluster: cluster.start(WORKER),
    ),
    Fault("Ray on the head is killed", ray_dies, "failure", f"{FAILURES} node_lost"),
)


if __name__ == "__main__":
    sys.exit(main())
