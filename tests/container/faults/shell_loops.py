"""The other side of the recipes: a shell loop on each node, as users write it.

For the scripts of `torchrun` and `trl` each node has
`while ! torchrun --nnodes 3 --node-rank N --master-addr head … SCRIPT; do sleep 2; done`, with the
newest complete checkpoint; for `command`, Ray is started in such a loop, and the head submits the
program in one. Timeouts are those that users have: torch's 30 minutes for gloo (NCCL: 10), Ray's
own for a silent node. A container that is killed is started again at once, as with Rollcall.
"""

from __future__ import annotations

import shlex
import time

from tests.container.faults.fault import Fault, newest_step
from tests.container.faults.recipe_containers import NODES, RANKS, RecipeContainers
from tests.container.faults.table_containers import BOOT_SECONDS, HEAD
from tests.support.recipe_jobs import OUT, VARIABLES

SLEEP_SECONDS = 2
PORT = 29500
POLL_SECONDS = 0.1


class ShellLoops(RecipeContainers):
    def boot(self) -> None:
        for number, _ in enumerate(NODES):
            self.join(number)
        self.until(lambda: bool(self.saved()), "checkpoint", within=2 * BOOT_SECONDS)

    def join(self, number: int) -> None:
        name = NODES[number]
        variables = {**VARIABLES, "JOB_PAUSE": str(self.job.pause)}
        script = self.of_ray(name) if self.job.recipe == "command" else self.of_torchrun(number)
        self._start(name, variables, "bash", "-c", script, alias=name)

    def of_torchrun(self, number: int) -> str:
        launcher = (
            f"torchrun --nnodes {RANKS} --nproc-per-node 1 --node-rank {number} "
            f"--master-addr {HEAD} --master-port {PORT}"
        )
        return self.looped(launcher)

    def of_ray(self, name: str) -> str:
        if name != HEAD:
            ray = f"ray start --address={HEAD}:6379 --disable-usage-stats --block"
            return f"while ! {ray}; do sleep {SLEEP_SECONDS}; done"
        ray = "ray start --head --dashboard-host=0.0.0.0 --disable-usage-stats --block"
        ready = f"until ray job list; do sleep {SLEEP_SECONDS}; done"
        submit = "ray job submit --address http://127.0.0.1:8265 -- python"
        return f"{ray} & {ready}; {self.looped(submit)}"

    def looped(self, command: str) -> str:
        """The command with the job's words, until it succeeds."""
        each = f"for one in $(ls -d {OUT}/checkpoint-* 2>/dev/null | sort -rV)"
        echo = f'[ -e "$one/{self.job.marker}" ] && echo {self.job.resume} "$one" && break'
        newest = f"$({each}; do {echo}; done)"
        line = f"{command} {shlex.join(self.job.words())} {newest}"
        return f"while ! {line}; do sleep {SLEEP_SECONDS}; done"

    def faults(self) -> list[str]:
        """Of a loop nothing is promised."""
        return []

    def seconds(self, fault: Fault[RecipeContainers], *, patience: float) -> float | None:
        """From the fault to the next step that was never finished; None if not in `patience`."""
        begun, newest, began = self.starts(), newest_step(self), time.monotonic()
        fault.inject(self)
        newest = max(newest, newest_step(self))
        if fault.heal is not None:
            time.sleep(fault.after)
            fault.heal(self)
        while time.monotonic() - began < patience:
            if self.starts() > begun and newest_step(self) > newest:
                return time.monotonic() - began
            time.sleep(POLL_SECONDS)
        return None

    def starts(self) -> int:
        return sum(row["kind"] == "begin" for row in self.rows())
