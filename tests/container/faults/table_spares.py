"""Faults of a cluster with a spare."""

from __future__ import annotations

import json
import re

from contract.launch.places import MOVED
from tests.container.cluster import ENDLESS
from tests.container.faults.fault import Fault
from tests.container.faults.table_containers import BOOT_SECONDS, Containers

WORKERS = 2


class Spared(Containers):
    """Two workers, each with a rank of the policy, and a spare."""

    def boot(self) -> None:
        job = (*ENDLESS, "--remote_rm_url", "arithmetic", "--actor_num_nodes", str(WORKERS))
        own = {"ROLLCALL_SPARE_WORKERS": "1", "ROLLCALL_HANG_TIMEOUT": "45"}
        self._newest = 0
        self.head(*job, workers=WORKERS, **own)
        for _ in range(WORKERS + 1):
            self.another()
        self.watch.goes_on(within=BOOT_SECONDS)
        self.watch.event("checkpoint", within=60)

    def another(self) -> None:
        """A machine that was never there comes."""
        self._newest += 1
        self.worker(self._newest)

    def with_spare(self) -> None:
        """Wait for the spare; another machine comes if there is none."""
        if len(self._running()) <= WORKERS:
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

    def lose(self) -> None:
        """A worker's machine is gone for ever."""
        self.nodes.pop(self.holder()).remove()

    def _running(self) -> list[str]:
        return [n for n, node in self.nodes.items() if n.startswith("worker-") and node.running]

    def _state(self) -> dict[str, list[str]]:
        asked = self.nodes["head"].execute("rollcall", "status", "--json")
        state: dict[str, list[str]] = json.loads(asked.stdout)
        return state


def is_lost(cluster: Spared) -> None:
    cluster.with_spare()
    cluster.watch.goes_on(within=30)
    cluster.lose()


FAULTS: tuple[Fault[Spared], ...] = (
    Fault(
        name="spare-worker-for-ever",
        sentence="a worker is lost for good, and a spare is there",
        inject=is_lost,
        deadline=90,
        restarts=False,
    ),
)
