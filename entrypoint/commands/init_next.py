"""What `init` prints at its end: the commands that show, copy and start the run, as typed."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from entrypoint.commands.init_answers import Place
from entrypoint.commands.init_platforms import (
    COMPOSE,
    KUBERNETES,
    NO_PLATFORM,
    PLATFORMS,
    image_of,
    mount_of,
    start_of,
)
from entrypoint.machine.gpus import discover
from entrypoint.processes.programs import as_typed

MEMORY_KNOWN = ("dstack", "skypilot")
"""Platforms whose files ask for GPUs of 80 GB."""
PLANNED = 64
"""Nodes up to which a plan takes no seconds."""
OWN_DIR = '"$PWD/run"'


@dataclass(frozen=True, slots=True)
class NextSteps:
    """The commands for a run whose files are written."""

    platform: str
    nodes: int
    gpus: int
    """Of each node."""
    name: str
    """Of the run; "" if none was given."""
    directory: Path
    """Where its files are."""
    shared: str
    """Where the nodes look for them."""
    has_image: bool
    """Whether the image of the nodes was named."""
    written: Sequence[str]
    """The names of the files that the job reads."""
    others: Sequence[Place]
    """What else it reads, and that may be here."""

    def lines(self) -> Iterator[str]:
        if self.nodes <= PLANNED:
            yield f"plan:  {self._verdict()}"
        yield f"look:  {self._where}{self._plan()}"
        if copied := self._copied():
            yield f"copy:  {self._where}{copied}"
        if not self.has_image and (image := image_of(self.platform, self.shared)):
            files = " and ".join(image.files)
            yield f"image: {image.name} in {files} stands for yours: {image.remedy}"
        if self.platform not in (NO_PLATFORM, COMPOSE):
            yield f"start: {start_of(self.platform, self.name, self._where)}"
            return
        yield f"start: {self._where}{self._by_hand()}"
        if self.nodes > 1:
            others = f"each of the {self.nodes - 1} others" if self.nodes > 2 else "the other node"
            yield f"on {others}, HEAD being the first node's address:"
            yield f"       {self._where}{self._by_hand(worker=True)}"
            yield "       the directory lies on storage that all nodes see"

    @property
    def _where(self) -> str:
        is_here = self.directory == Path()
        return "" if is_here else f"cd {shlex.quote(str(self.directory))} && "

    def _plan(self) -> str:
        """Return the command that shows what `start` would do on the run's nodes."""
        plan = f"{as_typed()} plan"
        if self.platform == NO_PLATFORM and self.gpus == discover.count():
            if self.nodes == 1:  # the variables of `start`
                return f"EXPECTED_WORKERS=0 ROLLCALL_RUN_DIR={OWN_DIR} {plan} --config run.yaml"
            return f"{plan} --nodes {self.nodes} --config run.yaml"
        memory = " --gpu-memory 80GB" if self.gpus else ""
        if self.platform not in (NO_PLATFORM, COMPOSE):  # the variable of the platform's file
            plan = f"ROLLCALL_RUN_DIR={shlex.quote(f'{self.shared}/run')} {plan}"
        line = f"{plan} --nodes {self.nodes} --gpus {self.gpus}{memory} --config run.yaml"
        is_assumed = memory and self.platform not in MEMORY_KNOWN
        return f"{line}    # 80GB stands for the memory of your GPUs" if is_assumed else line

    def _verdict(self) -> str:
        """Return the verdict of that command, which tries no code here."""
        from entrypoint.commands import cli, plan, plan_verdict
        from entrypoint.config.read import read_settings

        other = ["--nodes", str(self.nodes)]
        if self.platform != NO_PLATFORM or self.gpus != discover.count():
            other += ["--gpus", str(self.gpus)]
            other += ["--gpu-memory", "80GB"] if self.gpus else []
        elif self.nodes == 1:
            other = []
        call = cli.parse(["plan", *other, "--config", "run.yaml"])
        environ = {"EXPECTED_WORKERS": "0", "ROLLCALL_CHECK_CODE": "0", **call.variables}
        with contextlib.chdir(self.directory):
            row = plan.plan(read_settings(environ, call.arguments), call.planned)
        said = plan_verdict.sentence(row | {"lacks_run_dir": False, "warnings": []})
        faults = [one["problem"] for one in row["faults"] if one["variable"] != plan_verdict.MEMORY]
        return ": ".join([said, *faults[:1]])

    def _by_hand(self, *, worker: bool = False) -> str:
        """Return the command of the head, or of a worker, where no platform starts the nodes."""
        role = "RAY_WORKER=1 ROLLCALL_HEAD_ADDRESS=HEAD " if worker else ""
        if self.platform == COMPOSE:
            made = "mkdir -p run ~/.cache/huggingface && "
            owner = 'RUN_AS="$(id -u):$(id -g)"'
            return f"{made}{role}RUN_DIR={OWN_DIR} {owner} docker compose up"
        if worker:
            return f"{role}ROLLCALL_RUN_DIR={OWN_DIR} {as_typed()} up"
        variables = f"EXPECTED_WORKERS={self.nodes - 1} ROLLCALL_RUN_DIR={OWN_DIR}"
        name = f" --name {self.name}" if self.name else ""
        return f"mkdir -p run && {variables} {as_typed()} up{name} --config run.yaml"

    def _copied(self) -> str:
        """Return the command that copies what the nodes read; "" if all of it is there."""
        if self.platform == NO_PLATFORM:
            return ""
        inside, outside = self._sources()
        if self.platform == COMPOSE:
            brought = f"cp -r {shlex.join(outside)} .    # which compose.yaml mounts"
            return brought if outside else ""
        if not inside and not outside:
            return ""
        platform, mount = PLATFORMS[self.platform], mount_of(self.platform, self.shared)
        seen_there = platform.outside + self.shared.removeprefix(mount)
        to = shlex.quote(seen_there if platform.outside else self.shared)
        where = f"    # {platform.copied.format(mount=mount)}"
        if self.platform == KUBERNETES:
            apart = [f"-C {shlex.join([str(Path(one).parent), Path(one).name])}" for one in outside]
            packed = " ".join(["tar -cf -", *map(shlex.quote, inside), *apart])
            unpacked = shlex.quote(f"mkdir -p {to} && tar -xf - -C {to}")
            return f"{packed} | kubectl exec --stdin job/data -- sh -c {unpacked}{where}"
        parents = " --parents" if any("/" in name for name in inside) else ""
        copies = [f"cp -r{parents} {shlex.join(inside)} {to}"] if inside else []
        copies += [f"cp -r {shlex.join(outside)} {to}"] if outside else []
        if len(copies) == 2 and not parents:
            copies = [f"cp -r {shlex.join([*inside, *outside])} {to}"]
        return " && ".join([f"mkdir -p {to}", *copies]) + where

    def _sources(self) -> tuple[list[str], list[str]]:
        """Return what is copied: names seen from the run's directory, and whole paths."""
        shared, own = Path(self.shared), self.directory.absolute()
        sources = {name: own / name for name in self.written}
        for place in self.others:
            if place.path is not None:
                away = place.spelled != place.name or ".." in Path(place.name).parts
                sources[str(place.path) if away else place.name] = place.path
        wanted = [name for name, path in sources.items() if shared not in (*path.parents, path)]
        if self.platform == COMPOSE:  # the run's directory is the shared one
            wanted = [name for name, path in sources.items() if own not in (*path.parents, path)]
        inside = [name for name in wanted if not Path(name).is_absolute()]
        return inside, [name for name in wanted if Path(name).is_absolute()]
