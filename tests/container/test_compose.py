"""The compose file, by podman-compose."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from entrypoint.commands.demo import Layout, data_flags, job_flags, warm_up_flags
from tests.support.podman import CONFIGURATION, IMAGE, compose_program, podman
from tests.support.repository import ROOT

FILE = ROOT / "compose" / "cpu.yaml"


def test_one_volume_one_image_a_reward_server_and_as_many_workers_as_the_head_expects() -> None:
    compose: dict[str, Any] = yaml.safe_load(FILE.read_text())
    services = compose["services"]
    assert len(compose["volumes"]) == 1
    assert {service["image"] for service in services.values()} == {"${IMAGE:-rollcall:cpu}"}
    workers = [
        name for name, one in services.items() if one.get("environment", {}).get("RAY_WORKER")
    ]
    assert len(workers) == int(services["head"]["environment"]["EXPECTED_WORKERS"]) == 2
    assert "//reward:5000/" in services["head"]["environment"]["ROLLCALL_REWARD_URL"]


def test_it_trains_as_the_demo_does() -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    layout = Layout(Path("/checkpoints"), ports=0)
    for service, demo in (
        ("data", data_flags(layout, 0)),
        ("warm-up", warm_up_flags(layout, 0)),
        ("head", job_flags(layout, 0)),
    ):
        given = dict(word.split("=") for word in services[service]["command"] if "=" in word)
        flags = {flag: value.split(":-")[-1].rstrip("}") for flag, value in given.items()}
        assert flags | {"--seed": "0"} == dict(zip(demo[::2], demo[1::2], strict=True))


class Project:
    """The services of the compose file under a name, and on a port, of this test's own."""

    def __init__(self, program: str, port: int) -> None:
        self._program = program
        self._port = port
        self.name = f"rollcall-{uuid.uuid4().hex[:8]}"

    def compose(self, *words: str) -> None:
        few = {"PORT": str(self._port), "WARM_UP_STEPS": "2", "MAX_STEPS": "2"}
        done = subprocess.run(
            [self._program, "--project-name", self.name, "--file", str(FILE), *words],
            env={**os.environ, **few, "IMAGE": IMAGE, "CONTAINERS_CONF": str(CONFIGURATION)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def exit_code(self, service: str, *, within: float) -> int:
        container = f"{self.name}_{service}_1"
        code = int(podman("wait", container, within=within).stdout)
        if code != 0:
            said = podman("logs", container)
            print(said.stdout, said.stderr)
        return code


@pytest.fixture
def project(free_port: int) -> Iterator[Project]:
    program = compose_program()
    if program is None:
        pytest.skip("no podman-compose here")
    project = Project(program, free_port)
    yield project
    project.compose("down", "--volumes", "--timeout", "0")


@pytest.mark.faults
@pytest.mark.container
@pytest.mark.timeout(400)
def test_compose_up_trains_and_every_node_exits_0_within_150_seconds(project: Project) -> None:
    project.compose("up", "--detach", "--no-build")
    deadline = time.monotonic() + 150
    for service in ("head", "worker-1", "worker-2"):
        assert project.exit_code(service, within=deadline - time.monotonic()) == 0
