"""The files of a platform for one run: those of `compose/`, with the run's nodes and its job.

`compose/` is the only source: comments and settings of a file stay as they are.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint.processes.programs import ROOT

RUN_DIR = "ROLLCALL_RUN_DIR"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a platform's files must know of a run."""

    nodes: int
    gpus: int
    """Of each node."""
    job: tuple[str, ...]
    """The words after `rollcall`."""
    shared: str
    """The directory on storage that all nodes see, in which the run's files are."""
    image: str

    @property
    def run_dir(self) -> str:
        return f"{self.shared}/run"


class NoSourcesError(Exception):
    """This installation has no directory `compose`; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class PlatformFile:
    source: str
    """Below `compose/`."""
    name: str
    """Of the file that is written."""
    make: Callable[[str, Cluster], str]


def written(platform: str, cluster: Cluster) -> dict[str, str]:
    """Map the names of a platform's files to their contents. Raises NoSourcesError."""
    sources = _sources()
    return {
        file.name: file.make((sources / file.source).read_text(), cluster)
        for file in PLATFORMS[platform].files
    }


def _sources() -> Path:
    installed = Path("share", "rollcall", "compose")
    places = (ROOT / "compose", ROOT / installed, sys.prefix / installed)
    found = next((path for path in places if path.is_dir()), None)
    if found is None:
        raise NoSourcesError(
            f"this installation has no platform files ({places[-1]}): give --platform none, or run "
            "`rollcall init` in a copy of Rollcall's repository"
        )
    return found


def _replaced(text: str, *pairs: tuple[str, str]) -> str:
    """Return a text with each pattern replaced once. Raises ValueError if one does not occur."""
    for pattern, new in pairs:
        escaped = new.replace("\\", r"\\")
        text, count = re.subn(pattern, escaped, text, count=1, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"the source has nothing like {pattern}")
    return text


def _lines(cluster: Cluster, indent: str, end: str = "") -> str:
    """Return the job's words, one in a line."""
    return f"{end}\n".join(f"{indent}{shlex.quote(word)}" for word in cluster.job)


def _slurm(text: str, cluster: Cluster) -> str:
    job = shlex.join(cluster.job)
    return _replaced(
        text,
        (r"^#   sbatch --nodes 3 .*$", "#   sbatch rollcall.sbatch"),
        (r"^#SBATCH --nodes=\d+$", f"#SBATCH --nodes={cluster.nodes}"),
        (r"^#SBATCH --gpus-per-node=\d+$", f"#SBATCH --gpus-per-node={cluster.gpus}"),
        (
            r"^# The run directory is SHARED/rollcall/JOB_ID, or ROLLCALL_RUN_DIR\.",
            f"# The run directory is {cluster.run_dir}, or ROLLCALL_RUN_DIR.",
        ),
        (r"^set -euo pipefail$", f'set -euo pipefail\n\n# The job.\nset -- {job} "$@"'),
        (
            r"^export ROLLCALL_RUN_DIR=.*$",
            f"export {RUN_DIR}=${{{RUN_DIR}:-{cluster.run_dir}}}",
        ),
    )


def _kubernetes(text: str, cluster: Cluster) -> str:
    items = "".join(f"  - {json.dumps(word)}\n" for word in cluster.job)
    return _replaced(
        text,
        (r"^nodes: \d+$", f"nodes: {cluster.nodes}"),
        (r"^image: \S+$", f"image: {cluster.image}"),
        (r"^job:\n(?:  - .*\n)+", f"job:\n{items}"),
        (r"^  count: \d+$", f"  count: {cluster.gpus}"),
        (r"^  runDir: \S+$", f"  runDir: {cluster.run_dir}"),
    )


def _dstack(text: str, cluster: Cluster) -> str:
    return _replaced(
        text,
        (r"dstack apply -f \S+", "dstack apply -f task.dstack.yml"),
        (r"^nodes: \d+$", f"nodes: {cluster.nodes}"),
        (r"^image: \S+$", f"image: {cluster.image}"),
        (r"^  - ROLLCALL_RUN_DIR=\S+$", f"  - {RUN_DIR}={cluster.run_dir}"),
        (
            r"^  - exec rollcall\n(?:    --.*\n)+",
            f"  - exec rollcall\n{_lines(cluster, '    ')}\n",
        ),
        (r"^  gpu: 80GB:\d+$", f"  gpu: 80GB:{cluster.gpus}"),
    )


def _skypilot(text: str, cluster: Cluster) -> str:
    job = _lines(cluster, "    ", " \\")
    return _replaced(
        text,
        (r"sky launch --cluster rollcall \S+", "sky launch --cluster rollcall task.yaml"),
        (r"^num_nodes: \d+$", f"num_nodes: {cluster.nodes}"),
        (r"^  accelerators: H100:\d+$", f"  accelerators: H100:{cluster.gpus}"),
        (r"^  image_id: docker:\S+$", f"  image_id: docker:{cluster.image}"),
        (r"^  ROLLCALL_RUN_DIR: \S+$", f"  {RUN_DIR}: {cluster.run_dir}"),
        (r"^  exec rollcall \\\n(?:    --.*\n)+", f"  exec rollcall \\\n{job}\n"),
    )


def _compose(text: str, cluster: Cluster) -> str:
    job = shlex.join(cluster.job)
    return _replaced(
        text,
        (r"^    image: \S+$", f"    image: ${{IMAGE:-{cluster.image}}}"),
        (r"^    build:\n(?:      .*\n)+", ""),
        (
            r"^    volumes:$",
            f"    volumes:\n      # The files of the run.\n      - .:{cluster.shared}",
        ),
        (
            r"^      EXPECTED_WORKERS: .*$",
            f"      EXPECTED_WORKERS: ${{EXPECTED_WORKERS:-{cluster.nodes - 1}}}",
        ),
        (r"^      ROLLCALL_JOB: .*$", f"      ROLLCALL_JOB: ${{ROLLCALL_JOB:-{job}}}"),
    )


def _as_it_is(text: str, cluster: Cluster) -> str:
    return text


def _runpod_head(text: str, cluster: Cluster) -> str:
    template = json.loads(text)
    template |= {"imageName": cluster.image, "dockerStartCmd": list(cluster.job)}
    template["env"] |= {"EXPECTED_WORKERS": str(cluster.nodes - 1), RUN_DIR: cluster.run_dir}
    return json.dumps(template, indent=2) + "\n"


def _runpod_worker(text: str, cluster: Cluster) -> str:
    template = json.loads(text)
    template["imageName"] = cluster.image
    template["env"][RUN_DIR] = cluster.run_dir
    return json.dumps(template, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class PlatformFiles:
    files: tuple[PlatformFile, ...] = ()
    start: str = ""
    """The command that starts the run, typed where its files are."""
    note: str = ""
    """What the command does not say."""
    storage: str = "/shared"
    """Where the platform's files mount the storage that all nodes share."""


NO_PLATFORM = "none"
PLATFORMS: Mapping[str, PlatformFiles] = {
    NO_PLATFORM: PlatformFiles(),
    "slurm": PlatformFiles(
        (PlatformFile("slurm/rollcall.sbatch", "rollcall.sbatch", _slurm),),
        "sbatch rollcall.sbatch",
    ),
    "kubernetes": PlatformFiles(
        (PlatformFile("kubernetes/chart/values.yaml", "values.yaml", _kubernetes),),
        "helm install {name} {chart} --values values.yaml",
    ),
    "dstack": PlatformFiles(
        (PlatformFile("dstack/task.dstack.yml", "task.dstack.yml", _dstack),),
        "dstack apply -f task.dstack.yml",
    ),
    "skypilot": PlatformFiles(
        (PlatformFile("skypilot/task.yaml", "task.yaml", _skypilot),),
        "sky launch --cluster rollcall task.yaml",
    ),
    "compose": PlatformFiles(
        (
            PlatformFile("cuda.yaml", "compose.yaml", _compose),
            PlatformFile("env/tcp.env", "env/tcp.env", _as_it_is),
        ),
        "docker compose up",
        "on each machine: compose.yaml says with which variables",
    ),
    "runpod": PlatformFiles(
        (
            PlatformFile("runpod/head.json", "head.json", _runpod_head),
            PlatformFile("runpod/worker.json", "worker.json", _runpod_worker),
        ),
        note="create the templates head.json and worker.json (docs/platforms/runpod.md)",
        storage="/workspace",
    ),
}
"""Platform → its files. `none`: the run's own files alone."""


def start_of(platform: str, name: str, where: str) -> str:
    """Return how a run of a name is started. `where`: `cd DIRECTORY && `, or ""."""
    files = PLATFORMS[platform]
    chart = shlex.quote(str(_sources() / "kubernetes/chart"))
    command = files.start.format(name=name, chart=chart)
    typed = f"{where}{command}" if command else ""
    return "    # ".join(filter(None, (typed, files.note)))
