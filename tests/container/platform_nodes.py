"""What docs/platforms and compose/ start, started by podman on this machine.

Only what this machine cannot have is replaced: `docker` by `podman`, the image by the one for CPUs,
shared storage by a directory, GPUs and adapters by none, limits that this machine does not grant by
its own, and the network of several machines by podman's.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from contract.run_dir import RunFiles
from tests.support.podman import (
    CONFIGURATION,
    IMAGE,
    OF_THE_IMAGE,
    Container,
    compose_program,
    podman,
)
from tests.support.repository import ROOT
from tests.support.run_lines import PAGE, options_of_line
from tests.support.watch import Watch

COMPOSE = ROOT / "compose"
OF_THE_SHELL = "$(id -u):$(id -g)"
"""A user of the machine, who is not root."""
LOOK = """
echo ---; rollcall plan --json "$@"
echo ---; df --output=size --block-size=1G /dev/shm | tail --lines=1
echo ---; env
"""
"""The plan, the gigabytes of /dev/shm, and the variables that the node has."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The machines' shared directory, which has model and prompts, and a cache of models."""

    root: Path

    @classmethod
    def make(cls, root: Path, data: Path) -> Self:
        (root / "cache").mkdir(parents=True)
        for place in ("run", "data"):
            shutil.copytree(data, root / place)
        shared = cls(root)
        shared.give(*OF_THE_IMAGE)
        return shared

    def give(self, user: int, group: int) -> None:
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, user, group)

    def owned_by(self, value: str) -> str:
        """Return the user that `--user` of a line means, to whom the directory then belongs."""
        if value == OF_THE_SHELL:
            return ":".join(map(str, OF_THE_IMAGE))
        self.give(*map(int, value.split(":")))
        return value

    @property
    def run(self) -> Path:
        return self.root / "run"

    def volume(self, value: str) -> str:
        places = {"/shared/run": self.run, "~/.cache/huggingface": self.root / "cache"}
        if ":" not in value:  # of the container alone
            return value
        source, inside = value.split(":")
        return f"{places[source]}:{inside}"


@dataclass(slots=True)
class Machines:
    """Containers that are machines: each has an address of its own in podman's network."""

    shared: Shared
    name: str = field(default_factory=lambda: f"rollcall-{uuid.uuid4().hex[:8]}")
    nodes: list[Container] = field(default_factory=list)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(RunFiles(self.shared.run), self.report)

    def __enter__(self) -> Self:
        podman("network", "create", self.name)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.remove()
        podman("network", "rm", "--force", self.name, check=False)

    @property
    def head_address(self) -> str:
        (network,) = json.loads(podman("network", "inspect", self.name).stdout)
        first, _ = network["subnets"][0]["subnet"].rsplit(".", 1)
        return f"{first}.2"

    def start(self, *words: str, network: str = "") -> Container:
        node = f"{self.name}-{len(self.nodes)}"
        joined = ",".join(filter(None, [self.name, network])).replace(",", ":", 1)
        options = (f"--network={joined}", f"--hostname={node}")
        self.nodes.append(Container.start(node, *options, *words))
        return self.nodes[-1]

    def adopt(self, name: str) -> None:
        """A container that podman-compose has started."""
        self.nodes.append(Container(name, name))

    def report(self) -> str:
        tails = (node.said.splitlines()[-30:] for node in self.nodes)
        return "\n---\n".join("\n".join(tail) for tail in tails)


def granted(limit: str, value: int) -> bool:
    kinds = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}
    _, hard = resource.getrlimit(kinds[limit])
    return hard == resource.RLIM_INFINITY or 0 <= value <= hard


def line_here(words: Iterable[str], shared: Shared) -> tuple[list[str], list[str]]:
    """The options of a run line as this machine can have them, and the job's flags."""
    options, (_, *job) = options_of_line(list(words))
    here = []
    for option, value in sorted(options - {("network", "host")}):
        match option:
            case "gpus" | "device":
                continue
            case "ulimit":
                limit, _, number = value.partition("=")
                here += [f"--ulimit={value}"] if granted(limit, int(number)) else []
            case "user":
                here.append(f"--user={shared.owned_by(value)}")
            case "volume":
                here.append(f"--volume={shared.volume(value)}")
            case "env-file":
                here.append(f"--env-file={ROOT / value}")
            case _:
                here.append(f"--{option}={value}")
    return here, job


HEAD_POD = "abc123"
NO_GPUS = {"RUNPOD_GPU_COUNT": "0"}
"""Platforms promise GPUs, of which this machine has none."""
POD = {
    "RUNPOD_POD_ID": HEAD_POD,
    "RUNPOD_POD_HOSTNAME": "abc123-64410a1b",
    "RUNPOD_DC_ID": "EU-RO-1",
    "RUNPOD_GPU_COUNT": "8",
    "RUNPOD_CPU_COUNT": "128",
    "RUNPOD_PUBLIC_IP": "192.0.2.7",
    "RUNPOD_TCP_PORT_22": "10122",
    "RUNPOD_VOLUME_ID": "v1",
    "CUDA_VERSION": "13.0.2",
}
"""What RunPod gives a pod."""


def pod(name: str, shared: Shared, identity: str, **given: str) -> tuple[list[str], list[str]]:
    """A pod's options and its job's flags: what template, RunPod and `given` say.

    The image of RunPod's pods is built for root.
    The model is a directory on the volume instead of one of the hub.
    """
    template = json.loads((COMPOSE / "runpod" / f"{name}.json").read_text())
    variables = template["env"] | POD | {"RUNPOD_POD_ID": identity} | given
    volume = f"--volume={shared.root}:{template['volumeMountPath']}"
    words = template["dockerStartCmd"]
    job = ["/workspace/data/model" if word.startswith("Qwen/") else word for word in words]
    return [
        volume,
        "--user=0:0",
        *(f"--env={name}={value}" for name, value in variables.items()),
    ], job


def start_pods(
    machines: Machines, job: Sequence[str] = (), options: Sequence[str] = (), **head: str
) -> None:
    """Start a head and two workers of RunPod's templates on the network of pods.

    `job`: flags in place of the template's. `options`: podman's, of each pod. `head`: variables.
    """
    network = "interface_name=podnet1"
    own, of_template = pod("head", machines.shared, HEAD_POD, **NO_GPUS, **head)
    name = f"--network-alias={HEAD_POD}.runpod.internal"
    machines.start(*own, *options, name, IMAGE, *(job or of_template), network=network)
    for identity in ("xyz789", "xyz790"):
        own, _ = pod("worker", machines.shared, identity, HEAD_POD_ID=HEAD_POD, **NO_GPUS)
        machines.start(*own, *options, IMAGE, network=network)


def compose_here(name: str, root: Path, network: str | None) -> Path:
    """The compose file as this machine can have it; `network` is that of several machines."""
    content: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    node = content["services"]["node"]
    content["x-podman"] = {"in_pod": False}
    node.pop("deploy", None)
    node["devices"] = [one for one in node["devices"] if one.startswith("${RDMA")]
    node["ulimits"] = {
        limit: value for limit, value in node["ulimits"].items() if granted(limit, value)
    }
    if network:
        del node["network_mode"]
        node["environment"]["NCCL_IB_HCA"] = ""  # the adapters are not there
        content["networks"] = {"default": {"external": True, "name": network}}
    (root / "env").symlink_to(COMPOSE / "env")
    path = root / name
    path.write_text(yaml.safe_dump(content))
    return path


def blocks_of_the_page() -> list[str]:
    """What a user types on the head, and on each worker."""
    section = PAGE.read_text().partition("## By a compose file")[2].partition("\n## ")[0]
    found = re.findall(r"^```sh\n(.+?)^```$", section, re.M | re.S)
    assert len(found) == 2
    return found


def typed(block: str, last: str, file: Path, shared: Shared, address: str = "10.0.0.2") -> str:
    """The block as this machine can have it, with `last` in place of the word `up` and its option.

    Each machine is a project of its own.
    """
    replaced = {
        "registry.example.com/team/rollcall:cuda": IMAGE,
        "/shared/run": str(shared.run),
        "10.0.0.2": address,
        OF_THE_SHELL: shared.owned_by(OF_THE_SHELL),
        "--file compose/cuda.yaml up --no-build": f"--file {file} {last}",
        "docker compose": f"export CACHE={shared.root / 'cache'}\ndocker compose",
    }
    for there, here in replaced.items():
        block = block.replace(there, here)
    return block


def shell(script: str, *, within: float) -> str:
    """What a shell prints that runs a block of a page; podman-compose is `docker compose`."""
    program = compose_program()
    if program is None:
        pytest.skip("no podman-compose here")
    done = subprocess.run(
        ["bash", "-e", "-c", script.replace("docker compose", program)],
        env={**os.environ, "CONTAINERS_CONF": str(CONFIGURATION)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Look:
    """What `LOOK` prints."""

    plan: dict[str, Any]
    shm_gigabytes: int
    variables: dict[str, str]

    @classmethod
    def of(cls, printed: str) -> Look:
        _, plan, size, variables = printed.split("---\n", 3)
        pairs = (line.split("=", 1) for line in variables.splitlines() if "=" in line)
        return cls(json.loads(plan), int(size), dict(pairs))
