"""Time from `podman-compose up` to the first finished step: the shipped file, and by hand.

Both sides have the same services, image and volumes; more workers are copies of the file's. By
hand, each service waits for what it needs and no longer: workers for the head's port, the head for
all workers.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.sides import rest_submit
from contract.progress import Progress
from contract.run_dir import RunFiles
from tests.support.podman import CONFIGURATION, IMAGE, OF_THE_IMAGE, compose_program, podman
from tests.support.podman import missing as without_containers
from tests.support.repository import ROOT

SHIPPED = ROOT / "compose" / "cpu.yaml"
RUN, DATA, SUBMIT = "/checkpoints", "/data", "/submit.py"
TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.05
RAY_START = "ray start --num-gpus=0 --disable-usage-stats"
WORKER = f"""
until (exec 3<>/dev/tcp/head/6379) 2>/dev/null; do sleep 0.05; done
{RAY_START} --address=head:6379
touch {RUN}/joined-$HOSTNAME
sleep infinity
"""
HEAD = f"""
{RAY_START} --head --port=6379
until [ $(ls {RUN} | grep -c joined-) -eq {{workers}} ]; do sleep 0.05; done
python {SUBMIT} http://localhost:8265 python -m trainer {{flags}}
sleep infinity
"""


def missing() -> str | None:
    """What this machine lacks for both sides."""
    program = None if compose_program() else "no podman-compose here"
    return program or without_containers()


Services = Callable[[list[str]], dict[str, Any]]
"""From the job's flags to the services of a compose file."""


def shipped(nodes: int) -> Services:
    """Return the services of compose/cpu.yaml without those that prepare, and with this job."""

    def services(flags: list[str]) -> dict[str, Any]:
        given = yaml.safe_load(SHIPPED.read_text())["services"]
        head, worker = given["head"], given["worker-1"]
        del head["depends_on"], head["ports"], head["environment"]["ROLLCALL_REWARD_URL"]
        head["command"] = flags
        head["environment"]["EXPECTED_WORKERS"] = str(nodes - 1)
        named = {f"worker-{number}": numbered(worker, number) for number in range(1, nodes)}
        return {"head": head, **named}

    return services


def numbered(worker: dict[str, Any], number: int) -> dict[str, Any]:
    return {**worker, "hostname": f"worker-{number}"}


def by_hand(nodes: int) -> Services:
    """Return the same services as a user writes them who has Ray, and no Rollcall."""

    def services(flags: list[str]) -> dict[str, Any]:
        given = shipped(nodes)(flags)
        flags = [*flags, "--run_dir", RUN]
        script = HEAD.format(flags=shlex.join(flags), workers=nodes - 1)
        for name, service in given.items():
            service["environment"] = {}
            service["entrypoint"] = ["tini", "-s", "--"]
            words = script if name == "head" else WORKER
            service["command"] = ["bash", "-ec", words.replace("$", "$$")]  # compose expands it
        return given

    return services


def timed(side: Services, data: Path, root: Path, flags: list[str]) -> float:
    """Return the seconds until the first finished step. Afterwards all containers are removed."""
    services, submit = side(flags), rest_submit.__file__
    run = RunFiles(root / "run")
    run.root.mkdir(parents=True)
    os.chown(run.root, *OF_THE_IMAGE)
    for service in services.values():
        service["volumes"] = [f"{run.root}:{RUN}", f"{data}:{DATA}:ro", f"{submit}:{SUBMIT}:ro"]
        service.pop("build", None)
    file = root / "compose.yaml"
    file.write_text(yaml.safe_dump({"services": services}))
    name = f"rollcall-{uuid.uuid4().hex[:8]}"
    began = time.monotonic()
    try:
        _compose(name, file, "up", "--detach", "--no-build")
        while Progress.read(run.progress) is None:
            if time.monotonic() - began > TIMEOUT_SECONDS:
                said = podman("logs", f"{name}_head_1", check=False).stderr
                raise SystemExit(f"no step within {TIMEOUT_SECONDS:.0f} s:\n{said}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began
    finally:
        _compose(name, file, "down", "--timeout", "0")


def _compose(name: str, file: Path, *words: str) -> None:
    env = {**os.environ, "IMAGE": IMAGE, "CONTAINERS_CONF": str(CONFIGURATION)}
    command = [str(compose_program()), "--project-name", name, "--file", str(file), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")
