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
from typing import Any

from entrypoint.processes.programs import ROOT

RUN_DIR = "ROLLCALL_RUN_DIR"
IMAGE = "registry.example.com/team/rollcall:cuda"


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
    given_image: str = ""
    """"" if none was named."""
    mount: str = "/shared"
    """Where that storage is mounted: `shared` or a directory above it."""

    @property
    def run_dir(self) -> str:
        return f"{self.shared}/run"

    @property
    def image(self) -> str:
        return self.given_image or IMAGE


class NoSourcesError(Exception):
    """This installation has no directory `compose`; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class PlatformFile:
    source: str
    """Below `compose/`."""
    name: str
    """Of the file that is written."""
    make: Callable[[str, Cluster], str]
    names_image: bool
    """So that `init` says where to write another."""


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


def _lines(cluster: Cluster, end: str = "") -> str:
    """Return the job's words, one in a line of a YAML block."""
    return f"{end}\n".join(f"    {shlex.quote(word)}" for word in cluster.job)


def _slurm(text: str, cluster: Cluster) -> str:
    job = shlex.join(cluster.job)
    gpus = f"#SBATCH --gpus-per-node={cluster.gpus}\n" if cluster.gpus else ""
    if cluster.given_image:
        image = f"export IMAGE=${{IMAGE:-{cluster.given_image}}}"
        text = _replaced(text, (r"^export IMAGE=.*$", image))
    return _replaced(
        text,
        (r"^#   sbatch --nodes 3 .*$", "#   sbatch rollcall.sbatch"),
        (r"^#SBATCH --nodes=\d+$", f"#SBATCH --nodes={cluster.nodes}"),
        (r"^#SBATCH --gpus-per-node=\d+\n", gpus),
        (
            r"^# The run directory is SHARED/rollcall/JOB_ID, or ROLLCALL_RUN_DIR\. .*\n.*$",
            f"# The run directory is {cluster.run_dir}, or ROLLCALL_RUN_DIR.\n"
            "# Each job resumes its run. For a new run, set ROLLCALL_RUN_DIR to a new directory.",
        ),
        (r"^set -euo pipefail$", f'set -euo pipefail\n\n# The job.\nset -- {job} "$@"'),
        (r"^export SHARED=.*$", f"export SHARED=${{SHARED:-{cluster.mount}}}"),
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
        (r'^  existingClaim: ""$', "  existingClaim: data-shared"),
        (r"^  mountPath: \S+$", f"  mountPath: {cluster.mount}"),
        (r"^  runDir: \S+$", f"  runDir: {cluster.run_dir}"),
    )


def _dstack(text: str, cluster: Cluster) -> str:
    return _replaced(
        text,
        (r"dstack apply -f \S+", "dstack apply -f task.dstack.yml"),
        (r"^nodes: \d+$", f"nodes: {cluster.nodes}"),
        (r"^image: \S+$", f"image: {cluster.image}"),
        (r"^  - ROLLCALL_RUN_DIR=\S+$", f"  - {RUN_DIR}={cluster.run_dir}"),
        (r"^  - HF_HOME=\S+$", f"  - HF_HOME={cluster.mount}/huggingface"),
        (  # folded: in a plain scalar, `: ` and ` #` of a word would end it
            r"^  - exec rollcall\n(?:    --.*\n)+",
            f"  - >-\n    exec rollcall\n{_lines(cluster)}\n",
        ),
        (r"^  gpu: 80GB:\d+\n", f"  gpu: 80GB:{cluster.gpus}\n" if cluster.gpus else ""),
        (r"(?<=^  - /mnt/shared:)/shared$", cluster.mount),
    )


def _dstack_fleet(text: str, cluster: Cluster) -> str:
    resources = f"resources:\n  gpu: 80GB:{cluster.gpus}\n" if cluster.gpus else ""
    return _replaced(
        text,
        (r"dstack apply -f \S+", "dstack apply -f fleet.dstack.yml"),
        (r"may take up to three\.", f"may take up to {cluster.nodes}."),
        (r"^nodes: \S+$", f"nodes: 0..{cluster.nodes}"),
        (r"^resources:\n  gpu: \S+\n", resources),
    )


def _skypilot(text: str, cluster: Cluster) -> str:
    job = _lines(cluster, end=" \\")
    return _replaced(
        text,
        (r"sky volumes apply \S+", "sky volumes apply volume.yaml"),
        (r"sky launch --cluster rollcall \S+", "sky launch --cluster rollcall task.yaml"),
        (r"^num_nodes: \d+$", f"num_nodes: {cluster.nodes}"),
        (
            r"^  accelerators: H100:\d+\n",
            f"  accelerators: H100:{cluster.gpus}\n" if cluster.gpus else "",
        ),
        (r"^  /shared:(?= )", f"  {cluster.mount}:"),
        (r"^  HF_HOME: \S+$", f"  HF_HOME: {cluster.mount}/huggingface"),
        (r"^  image_id: docker:\S+$", f"  image_id: docker:{cluster.image}"),
        (r"^  ROLLCALL_RUN_DIR: \S+$", f"  {RUN_DIR}: {cluster.run_dir}"),
        (r"^  exec rollcall \\\n(?:    --.*\n)+", f"  exec rollcall \\\n{job}\n"),
    )


def _skypilot_volume(text: str, cluster: Cluster) -> str:
    return _replaced(
        text,
        (r", for task\.yaml and managed\.yaml:$", ", for task.yaml:"),
        (r"sky volumes apply \S+", "sky volumes apply volume.yaml"),
    )


def _compose(text: str, cluster: Cluster) -> str:
    # Compose reads a `$` as a variable's, and `}` as the end of this one's default.
    job = shlex.join(cluster.job).replace("$", "$$")
    if not cluster.gpus:
        text = _replaced(text, (r"^    deploy:\n(?:      .*\n)+", ""))
    return _replaced(
        text,
        (r"^#           export ROLLCALL_JOB=.*\n", ""),
        (r"docker compose --file \S+ up", "docker compose up"),
        (r"docker compose --file \S+ up", "docker compose up"),
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
        (
            r"^      ROLLCALL_JOB: .*$",
            f"      ROLLCALL_JOB: {json.dumps(f'${{ROLLCALL_JOB:-{job}}}', ensure_ascii=False)}",
        ),
    )


def _as_it_is(text: str, cluster: Cluster) -> str:
    return text


def _runpod_head(text: str, cluster: Cluster) -> str:
    template = _runpod(text, cluster) | {"dockerStartCmd": list(cluster.job)}
    template["env"]["EXPECTED_WORKERS"] = str(cluster.nodes - 1)
    return json.dumps(template, indent=2) + "\n"


def _runpod_worker(text: str, cluster: Cluster) -> str:
    return json.dumps(_runpod(text, cluster), indent=2) + "\n"


def _runpod(text: str, cluster: Cluster) -> dict[str, Any]:
    template: dict[str, Any] = json.loads(text)
    template |= {"imageName": cluster.image, "volumeMountPath": cluster.mount}
    template["env"] |= {RUN_DIR: cluster.run_dir, "HF_HOME": f"{cluster.mount}/huggingface"}
    return template


NO_PLATFORM = "none"
WITH_FLAG = "as `init --image NAME` does"


@dataclass(frozen=True, slots=True)
class PlatformFiles:
    files: tuple[PlatformFile, ...] = ()
    start: str = ""
    """The command that starts the run, typed where its files are."""
    note: str = ""
    """What the command does not say."""
    storage: str = "/shared"
    """Where the platform's files mount the storage that all nodes share."""
    copied: str = "on a machine that has the storage of all nodes"
    """Where the command is typed that copies the run's files to that storage."""
    outside: str = ""
    """Path of that storage there, if it is another."""
    image: str = IMAGE
    """What stands for the image until the user's name replaces it."""
    image_remedy: str = f"write it there, {WITH_FLAG} (docs/platforms/index.md#the-image)"


COMPOSE, KUBERNETES, RUNPOD, SLURM = "compose", "kubernetes", "runpod", "slurm"
PLATFORMS: Mapping[str, PlatformFiles] = {
    NO_PLATFORM: PlatformFiles(),
    SLURM: PlatformFiles(
        (PlatformFile("slurm/rollcall.sbatch", "rollcall.sbatch", _slurm, True),),
        "sbatch rollcall.sbatch",
        image="{mount}/rollcall.sqsh",
        image_remedy="make that file (docs/platforms/slurm.md#the-image), or write another, "
        f"{WITH_FLAG}",
    ),
    KUBERNETES: PlatformFiles(
        (PlatformFile("kubernetes/chart/values.yaml", "values.yaml", _kubernetes, True),),
        "helm install {name} {chart} --values values.yaml",
        copied="job/data is a pod that has the claim: docs/platforms/kubernetes.md#your-files",
    ),
    "dstack": PlatformFiles(
        (
            PlatformFile("dstack/task.dstack.yml", "task.dstack.yml", _dstack, True),
            PlatformFile("dstack/fleet.dstack.yml", "fleet.dstack.yml", _dstack_fleet, False),
        ),
        "dstack apply -f fleet.dstack.yml && dstack apply -f task.dstack.yml",
        copied="on a machine of the fleet: the task sees it as {mount}",
        outside="/mnt/shared",
    ),
    "skypilot": PlatformFiles(
        (
            PlatformFile("skypilot/task.yaml", "task.yaml", _skypilot, True),
            PlatformFile("skypilot/volume.yaml", "volume.yaml", _skypilot_volume, False),
        ),
        "sky volumes apply volume.yaml && sky launch --cluster rollcall task.yaml",
        copied="in a pod that has the volume: docs/platforms/skypilot.md",
    ),
    COMPOSE: PlatformFiles(
        (
            PlatformFile("cuda.yaml", "compose.yaml", _compose, True),
            PlatformFile("env/tcp.env", "env/tcp.env", _as_it_is, False),
        ),
        "docker compose up",
        image_remedy=f"set IMAGE, or write it, {WITH_FLAG}",
    ),
    RUNPOD: PlatformFiles(
        (
            PlatformFile("runpod/head.json", "head.json", _runpod_head, True),
            PlatformFile("runpod/worker.json", "worker.json", _runpod_worker, True),
        ),
        note="make the templates of head.json and worker.json: docs/platforms/runpod.md",
        storage="/workspace",
        copied="in a pod that has the network volume: docs/platforms/runpod.md",
    ),
}
"""Platform → its files. `none`: the run's own files alone."""
OTHER_NAMES = {
    "k8s": KUBERNETES,
    "kube": KUBERNETES,
    "helm": KUBERNETES,
    "sky": "skypilot",
    "docker": COMPOSE,
    "docker-compose": COMPOSE,
    "sbatch": SLURM,
    "local": NO_PLATFORM,
}
"""What a platform is called, too → its name here."""


def mount_of(platform: str, shared: str) -> str:
    """Return where the nodes mount the storage that has the directory `shared`."""
    usual = PLATFORMS[platform].storage
    if f"{shared}/".startswith(f"{usual}/"):
        return usual
    above = str(Path(shared).parent)
    return shared if above == "/" else above


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What stands for the image in a platform's files until the user's name replaces it."""

    name: str
    files: tuple[str, ...]
    remedy: str


def image_of(platform: str, shared: str) -> Placeholder | None:
    """Return what stands for the image if none was named; None without files of a platform."""
    of = PLATFORMS[platform]
    files = tuple(file.name for file in of.files if file.names_image)
    name = of.image.format(mount=mount_of(platform, shared))
    return Placeholder(name, files, of.image_remedy) if files else None


def start_of(platform: str, name: str, where: str) -> str:
    """Return how a run of a name is started. `where`: `cd DIRECTORY && `, or ""."""
    files = PLATFORMS[platform]
    chart = shlex.quote(str(_sources() / "kubernetes/chart"))
    command = files.start.format(name=name, chart=chart)
    typed = f"{where}{command}" if command else ""
    return "    # ".join(filter(None, (typed, files.note)))
