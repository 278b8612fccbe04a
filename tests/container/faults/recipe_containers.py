"""Where faults of the recipes `torchrun`, `trl` and `command` are played: three containers.

The job records each step beside the run directory, which is a disk of its own.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Self

from tests.container.faults import checker, disk, own_record
from tests.container.faults.machine import do
from tests.container.faults.table_containers import (
    BOOT_SECONDS,
    FIRST,
    HEAD,
    MAX_RESTARTS,
    SECOND,
    Containers,
)
from tests.support.podman import IMAGE, run_once
from tests.support.recipe_jobs import RECORD, VARIABLES, VOLUMES, RecipeJob, losses, rows

DISK_BYTES = 384 * 2**20
RANKS = 3
DRIVER, ENTRYPOINT = "-m trainer.cluster.launch ", "-m rollcall"
"""What only their command lines have; both also have the job's words."""
STOPPED = 143
NODES = (HEAD, FIRST, SECOND)


class RecipeContainers(Containers):
    """A head and two workers at work on a recipe's job, with Rollcall's default settings."""

    def __init__(self, root: Path, data: Path, job: RecipeJob) -> None:
        super().__init__(root, data)
        self.job = job
        self.record = root / "record" / Path(RECORD).name
        self.record.parent.mkdir()
        self.volumes = (*VOLUMES, f"{self.record.parent}:{Path(RECORD).parent}")

    def __enter__(self) -> Self:
        disk.make(self.run.root, DISK_BYTES)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        disk.remove(self.run.root)

    def boot(self) -> None:
        words = self.job.words()
        if self.job.recipe == "command":
            words = ["python", *words]
        variables: dict[str, Any] = self.job.variables()
        self.head(*words, **variables)
        self.join(1)
        self.join(2)
        self.until(lambda: bool(self.saved()), "checkpoint", within=2 * BOOT_SECONDS)

    def join(self, number: int) -> None:
        """Start a worker of this number in a new container."""
        self.worker(number, **VARIABLES)

    def rows(self) -> list[dict[str, Any]]:
        return rows(self.record)

    def saved(self) -> list[int]:
        """The steps after which it has saved."""
        return [row["step"] for row in self.rows() if row["kind"] == "saved"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the journal, but steps from the job's own record: the journal has some of them."""
        if kind != "step":
            return super().events(kind)
        return [{**row, "details": row} for row in self.rows() if row["kind"] == "step"]

    def trains(self) -> bool:
        count = len(self.events("step"))
        try:
            self.until(lambda: len(self.events("step")) > count, "step", within=60)
        except AssertionError:
            return False
        return True

    def faults(self) -> list[str]:
        token = self.run.token.read_text().strip()
        found = own_record.faults(self.run, self.rows(), max_restarts=MAX_RESTARTS, secrets=[token])
        said = {f"console of {name}": node.said for name, node in self.nodes.items()}
        return [*found, *checker.told(said, [token])]

    def checkpoints(self) -> list[Path]:
        """Newest first, also those that are half written."""
        found = (self.run.root / "out").glob("checkpoint-*")
        return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)

    def is_whole(self, checkpoint: Path) -> bool:
        return (checkpoint / self.job.marker).exists()

    def send(self, role: str, number: signal.Signals) -> None:
        """Raises AssertionError where nobody has the role for as long as a start may take."""
        pids: list[int] = []

        def found() -> bool:
            pids[:] = self.of(role)
            return bool(pids)

        self.until(found, role, within=60)
        do("kill", f"-{number.value}", *map(str, pids), check=False)

    def of(self, role: str) -> list[int]:
        """The host's ids of the processes: driver, rank (of a worker), saver."""
        if self.job.recipe == "command":
            if role == "rank":
                return self.nodes[FIRST].pids("ray::Shard")
            return self._running(HEAD, self.job.script)
        if role == "rank":
            return self.nodes[FIRST].pids(self.job.script)
        return self._running(HEAD, DRIVER if role == "driver" else self.job.script)

    def _running(self, node: str, word: str) -> list[int]:
        """Those that `word` names, of what a node has started for the job."""
        found = set(self.nodes[node].pids(word))
        own = {ENTRYPOINT} if word == DRIVER else {ENTRYPOINT, DRIVER}
        return sorted(found.difference(*map(self.nodes[node].pids, own)))

    def stop(self) -> None:
        """SIGTERM to the head: all save, and end with 143."""
        self.nodes[HEAD].stop(grace=40)
        assert set(self.exit_codes(within=40).values()) == {STOPPED}, self.report()
        last = self.events("step")[-1]["details"]["step"]
        assert self.saved()[-1] == last, "an attempt before it may have got further"

    def start_all(self) -> None:
        for name in NODES:
            self.nodes[name].start_again()

    def undisturbed(self, steps: int) -> tuple[dict[int, float], bytes]:
        """Losses and final weights of as many steps, with as many ranks in one container."""
        root = self.root / "undisturbed"
        (root / "record").mkdir(parents=True)
        launcher = ["python"]
        if self.job.recipe != "command":
            launcher = ["torchrun", "--standalone", f"--nproc-per-node={RANKS}"]
        done = run_once(
            *("--user=0:0", "--entrypoint=tini", "--shm-size=512m", "--pids-limit=-1"),
            *(f"--volume={volume}" for volume in VOLUMES),
            *(f"--volume={root}:/checkpoints", f"--volume={self.data}:/data:ro"),
            f"--volume={root / 'record'}:{Path(RECORD).parent}",
            *(f"--env={name}={value}" for name, value in VARIABLES.items()),
            *(IMAGE, "--", *launcher, *self.job.words(steps)),
            within=900,
        )
        assert done.returncode == 0, done.stderr
        weights = root / "out" / f"checkpoint-{steps}" / self.job.weights
        return losses(rows(root / "record" / self.record.name)), weights.read_bytes()
