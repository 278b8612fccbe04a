"""docs/platforms/guides.md: the lines that a user writes are few, and mean what it says."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from entrypoint.__main__ import recipe_takes_command
from entrypoint.commands import cli
from entrypoint.commands.cli import PlannedNodes
from entrypoint.commands.plan import plan
from entrypoint.config.read import read_settings
from entrypoint.job.recipes.search_r1 import recipe as search_r1
from tests.support.env_files import variables_of
from tests.support.job_flags import assert_flags_are_the_trainers
from tests.support.repository import DATA, ROOT
from tests.support.run_lines import options_of_line

PAGES = ROOT / "docs" / "platforms"
BLOCK = re.compile(r"^```(sh|text) guide=([\w-]+)\n(.+?)^```$", re.MULTILINE | re.DOTALL)

THEIRS = {
    "openrlhf": 6,
    "openrlhf-slurm": 37,
    "openrlhf-older": 5,
    "runpod": 22,
    "search-r1": 15,
    "verl": 112,
    "verl-manual": 4,
    "verl-dstack": 27,
    "verl-amd": 81,
}
"""Lines of the guides.

A line is what a user types in a shell, or changes in a file or a form, however long it is. It
counts once for the head and once for all workers. The job's flags in a file, software, model and
data, optional steps, and commands that watch or stop a job do not count.

- openrlhf: `docker run` and `ray start` on the head and on the workers, `ray status`, and `ray job
  submit`.
- openrlhf-slurm: of the script's lines one is the version of Ray. `sbatch` is added.
- openrlhf-older: `ray start` on machines A and B, and three arguments of the reference that change.
- runpod: HEAD_POD_ID and EXPECTED_WORKERS on the head, RAY_WORKER and HEAD_POD_ID on the workers,
  the seven NCCL variables on both, `cd` and `bash` on both. What it calls optional is left out.
- search-r1: `ray start` on both, `ray status`, the retriever on both, and ten lines of the script:
  nine of variables and limits, and `ray job submit`.
- verl-manual: `ray start` on both, `ray status`, `ray job submit`.
- verl-dstack: `mkdir`, `dstack init`, 22 lines of the task, `dstack apply`, RAY_ADDRESS, and `ray
  job submit`. Of the task, the commands that clone, install and fetch are left out.
- verl-amd: of the script's lines eight pull or build the image, two name it and its Dockerfile,
  four prepare data, four load models, and ten are optional as it says itself: nine find the IPv4
  address among several, and one sleeps. `sbatch` is added.
- verl: the sum of its three parts.
"""
WHOLE = [name for name in THEIRS if not name.startswith("verl-")]


def blocks(guide: str) -> dict[str, list[str]]:
    """Shell lines and changed lines of a guide, on all pages."""
    found: dict[str, list[str]] = {"sh": [], "text": []}
    for page in sorted(PAGES.glob("*.md")):
        for language, name, body in BLOCK.findall(page.read_text()):
            if name == guide:
                lines = body.replace("\\\n", " ").splitlines()
                found[language] += [one for one in lines if one and not one.startswith("#")]
    return found


def ours(guide: str) -> int:
    if guide == "verl":
        return sum(ours(name) for name in THEIRS if name.startswith("verl-"))
    return sum(len(lines) for lines in blocks(guide).values())


SCRIPTS = {
    "openrlhf-slurm": ("openrlhf-slurm", 1),
    "verl-amd": ("verl-amd-slurm", 8 + 2 + 4 + 4 + 10),
}
"""The guides' scripts, and how many of their lines do not count."""


@pytest.mark.parametrize("guide", SCRIPTS)
def test_the_lines_of_a_guides_script_are_counted(guide: str) -> None:
    name, left_out = SCRIPTS[guide]
    text = (DATA / "guide_scripts" / f"{name}.sh").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    counted = [line for line in lines if line.startswith("#SBATCH") or not line.startswith("#")]
    sbatch = 1
    assert len(counted) - left_out + sbatch == THEIRS[guide]


def test_the_sum_of_verls_parts_is_verls() -> None:
    assert THEIRS["verl"] == sum(THEIRS[f"verl-{part}"] for part in ("manual", "dstack", "amd"))


@pytest.mark.parametrize("guide", WHOLE)
def test_a_user_writes_at_most_a_third_of_a_guides_lines(guide: str) -> None:
    assert 0 < 3 * ours(guide) <= THEIRS[guide]


def settings_of_a_file(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".env":
        return variables_of(path)
    text = path.read_text()
    content: Mapping[str, Any] = (
        json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    )
    return content


@pytest.mark.parametrize("guide", [name for name in THEIRS if blocks(name)["text"]])
def test_a_file_has_the_lines_that_a_user_changes(guide: str) -> None:
    for line in blocks(guide)["text"]:
        name, _, keys = line.partition(": ")
        content: Any = settings_of_a_file(ROOT / name)
        for key in keys.split("."):
            content = content[key]


@pytest.mark.parametrize("guide", ["openrlhf", "openrlhf-slurm", "openrlhf-older", "verl-amd"])
def test_the_jobs_flags_are_the_trainers(guide: str, tmp_path: Path) -> None:
    words = shlex.split(blocks(guide)["sh"][0])
    assert_flags_are_the_trainers(words[words.index("--pretrain") :], tmp_path)


# ---- the lines of Docker

PYTHON_OF_VERL = "/opt/verl/bin/python"
"""In the CUDA image that is built with verl."""


def planned(line: str) -> dict[str, Any]:
    """What the node of a `docker run` line would do."""
    docker, run, *words = shlex.split(line.replace(PYTHON_OF_VERL, sys.executable))
    assert (docker, run) == ("docker", "run")
    words = [word for word in words if word not in ("--rm", "--init")]
    options, (image, *arguments) = options_of_line(words)
    assert image.startswith("registry.example.com/team/")
    environ = dict(value.split("=", 1) for option, value in options if option == "env")
    commanded = recipe_takes_command(environ)
    call = cli.parse(arguments, recipe_takes_command=commanded)
    assert call.command == "up"
    gpus = (8,) * (1 + int(environ.get("EXPECTED_WORKERS", "0")))
    shown = plan(read_settings(environ, call.arguments if commanded else ()), PlannedNodes(gpus))
    return shown | {"environ": environ, "arguments": arguments}


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of an image, which has Search-R1."""
    monkeypatch.setattr(search_r1, "has_module", lambda *_: True)


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("guide", ["openrlhf", "search-r1", "verl-manual"])
def test_one_line_is_the_head_and_the_other_one_of_its_workers(guide: str) -> None:
    head, worker = map(planned, blocks(guide)["sh"])
    assert (head["role"], head["faults"]) == ("head", [])
    assert (worker["role"], worker["faults"]) == ("worker", [])
    assert worker["head_address"] == "10.0.0.2"
    assert worker["arguments"] == []


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(("guide", "recipe"), [("search-r1", "search-r1"), ("verl-manual", "verl")])
def test_the_head_runs_the_program_and_its_keys_say_how_many_nodes_there_are(
    guide: str, recipe: str
) -> None:
    head, worker = map(planned, blocks(guide)["sh"])
    assert head["recipe"] == worker["recipe"] == recipe
    assert " -m verl.trainer.main_ppo " in head["job"]
    assert f"trainer.nnodes={head['expected_workers'] + 1}" in head["job"].split()


@pytest.mark.usefixtures("image")
def test_every_node_starts_search_r1s_retriever() -> None:
    of_the_nodes = [
        {name: value for name, value in node["environ"].items() if "RETRIEVER" in name}
        for node in map(planned, blocks("search-r1")["sh"])
    ]
    assert of_the_nodes[0] == of_the_nodes[1]
    assert of_the_nodes[0].keys() == {"ROLLCALL_RETRIEVER_COMMAND", "ROLLCALL_RETRIEVER_URL"}
