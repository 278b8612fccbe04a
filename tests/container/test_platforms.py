"""The run lines, compose files and templates of docs/platforms start real containers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.container.platform_nodes import (
    COMPOSE,
    LOOK,
    Look,
    Shared,
    blocks_of_the_page,
    compose_here,
    line_here,
    pod,
    shell,
    typed,
)
from tests.support.env_files import variables_of
from tests.support.podman import IMAGE, run_once
from tests.support.run_lines import PAGE, options_of_line, run_lines
from tests.support.slurm_variables import SLURM_JOB, slurm_step

pytestmark = [pytest.mark.container, pytest.mark.timeout(300)]

LINES = run_lines()
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(LINES)]


def look(options: list[str], job: list[str]) -> Look:
    done = run_once(*options, IMAGE, "bash", "-c", LOOK, "look", *job)
    assert done.returncode == 0, done.stderr
    return Look.of(done.stdout)


def assert_the_head_would_start(plan: dict[str, Any]) -> None:
    found = (plan["role"], plan["expected_workers"], plan["faults"])
    assert found == ("head", 2, [])


# ---- run lines


@pytest.mark.parametrize(("name", "line"), LINES, ids=IDS)
def test_a_run_line_starts_a_container_that_would_be_the_head(
    name: str, line: str, shared: Shared
) -> None:
    options, job = line_here(shlex.split(line)[2:], shared)
    found = look([*options, "--network=host"], job)
    assert_the_head_would_start(found.plan)
    given = dict(options_of_line(shlex.split(line)[2:])[0])
    assert found.shm_gigabytes == int(given["shm-size"].removesuffix("gb"))
    network = COMPOSE.parent / given["env-file"]
    assert variables_of(network).items() <= found.variables.items()
    assert found.variables["HF_HOME"] == "/cache"


# ---- compose files


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_a_compose_file_starts_a_container_that_would_be_the_head(
    name: str, shared: Shared, tmp_path: Path
) -> None:
    file = compose_here(f"{name}.yaml", tmp_path, network=None)
    head, _ = blocks_of_the_page()
    once = f"run --rm -T node bash -c {shlex.quote(LOOK)}"
    try:
        found = Look.of(shell(typed(head, once, file, shared), within=60))
    finally:
        shell(typed(head, "down", file, shared), within=60)
    assert_the_head_would_start(found.plan)
    assert found.shm_gigabytes == {"cuda": 64, "rocm": 128}[name]
    network = {"cuda": "tcp", "rocm": "mi300"}[name]
    assert variables_of(COMPOSE / "env" / f"{network}.env").items() <= found.variables.items()


# ---- the sbatch file

SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


def test_the_sbatch_line_of_amd_starts_a_container_that_would_be_the_head(
    shared: Shared, tmp_path: Path
) -> None:
    text = PAGE.with_name("amd.md").read_text()
    (line,) = re.findall(r"^```sh guide=verl-amd\n(.+?)^```$", text, re.M | re.S)
    words = shlex.split(line.replace("\\\n", " "))
    options = words[words.index("--export") + 1].split(",")
    variables = dict(option.split("=", 1) for option in options if option != "ALL")
    file = words.index("compose/slurm/rollcall.sbatch")
    job = [word.replace("/shared/train", f"{shared.run}/train") for word in words[file + 1 :]]
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)
    of_slurm = SLURM_JOB | slurm_step(0, "gn1", 3, "gn[1-3]")
    given = variables | of_slurm | {"IMAGE": IMAGE, "SHARED": str(shared.root)}
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in given.items())
    command = shlex.join([words[file], "bash", "-c", LOOK, "look", *job])
    script = f"export PATH={srun.parent}:$PATH\n{exported}bash {command}"
    found = Look.of(shell(script, within=60))
    assert_the_head_would_start(found.plan)
    assert found.shm_gigabytes == 64
    assert variables_of(COMPOSE / "env" / "mi300.env").items() <= found.variables.items()


# ---- RunPod


def test_a_pod_of_the_heads_template_would_be_the_head(shared: Shared) -> None:
    found = look(*pod("head", shared, "abc123"))
    assert_the_head_would_start(found.plan)
    assert found.plan["head_address"] == "abc123.runpod.internal"


def test_a_pod_of_the_workers_template_would_join_the_head(shared: Shared) -> None:
    found = look(*pod("worker", shared, "xyz789", HEAD_POD_ID="abc123"))
    assert (found.plan["role"], found.plan["faults"]) == ("worker", [])
    assert found.plan["head_address"] == "abc123.runpod.internal"
