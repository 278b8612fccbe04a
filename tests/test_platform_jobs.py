"""The files of compose/ as their platforms start them: the nodes' roles, and the job's data."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.compose_files import PAGES, jobs, json_of, planned, yaml_of
from tests.support.platforms import CLUSTERS


def variables_of_file(name: str) -> dict[str, str]:
    if name == "dstack":
        given = yaml_of("dstack/task.dstack.yml")["env"]
        return dict(one.split("=", 1) if "=" in one else (one, "") for one in given)
    if name == "aws batch":
        (node,) = json_of("aws-batch/job-definition.json")["nodeProperties"]["nodeRangeProperties"]
        return {one["name"]: one["value"] for one in node["container"]["environment"]}
    task = yaml_of(f"{name}.yaml")
    return {**task["envs"], **task["secrets"]}


@pytest.mark.parametrize(
    ("file", "cluster"),
    [
        ("dstack", "dstack"),
        ("aws batch", "aws batch"),
        ("skypilot/task", "skypilot"),
        ("skypilot/managed", "skypilot"),
    ],
)
def test_a_files_variables_leave_the_roles_to_the_platform(file: str, cluster: str) -> None:
    (recorded,) = (one for one in CLUSTERS if one.name == cluster)
    plans = [planned(variables_of_file(file) | node) for node in recorded.environs()]
    assert [one["role"] for one in plans] == ["head"] + ["worker"] * (len(plans) - 1)
    assert [one["faults"] + one["warnings"] for one in plans] == [[]] * len(plans)
    assert plans[0]["expected_workers"] == len(plans) - 1
    assert {one["head_address"] for one in plans[1:]} == {recorded.address}


DATA_ITEM = re.compile(
    r"^- \*\*([A-Za-z]+)\b(?:(?!^- \*\*).)*?\bprepare\W+(\w+)\W+--out\W+?(/[\w/]+)", re.M | re.S
)
"""A platform of the list in index.md, the task, and the directory that is filled."""
FILLED = {
    "Docker": ("arithmetic", "/checkpoints", ["--pretrain", "--prompt_data"]),
    "Slurm": ("arithmetic", "/shared", ["--pretrain", "--prompt_data"]),
    "RunPod": ("gsm8k", "/workspace/data", ["--prompt_data"]),
    "dstack": ("gsm8k", "/shared/data", ["--prompt_data"]),
    "SkyPilot": ("gsm8k", "/shared/data", ["--prompt_data"]),
    "Kubernetes": ("gsm8k", "/shared/data", ["--prompt_data"]),
    "AWS": ("gsm8k", "/shared/data", ["--prompt_data"]),
}


def job_of(platform: str) -> list[str]:
    """The flags of the job on the platform's page or in its file."""
    if platform in ("Docker", "Slurm"):
        page = (PAGES / f"{platform.lower()}.md").read_text().replace("\\\n", " ")
        return re.findall(r"--pretrain /\S+|--prompt_data /\S+", page)[:2]
    name = {"RunPod": "head", "SkyPilot": "task", "Kubernetes": "chart", "AWS": "aws"}
    flags = shlex.join(jobs()[name.get(platform, platform)]).replace("=", " ")
    return re.findall(r"--prompt_data \S+", flags)


def test_the_data_that_a_page_makes_are_those_of_its_job() -> None:
    found = {row[0]: row[1:] for row in DATA_ITEM.findall((PAGES / "index.md").read_text())}
    assert found == {name: made[:2] for name, made in FILLED.items()}
    made_of = {"arithmetic": {"model", "train.jsonl"}, "gsm8k": {"train.jsonl"}}
    for platform, (task, directory, flags) in FILLED.items():
        read = dict(flag.split(" ") for flag in job_of(platform))
        assert read.keys() == set(flags), platform
        assert all(
            path in {f"{directory}/{one}" for one in made_of[task]} for path in read.values()
        )


@pytest.mark.parametrize(
    "page",
    ["docker", "amd", "runpod", "slurm", "dstack", "skypilot", "kubernetes", "aws-batch"],
)
def test_a_page_says_where_its_jobs_data_come_from(page: str) -> None:
    assert "index.md#the-data" in (PAGES / f"{page}.md").read_text()
