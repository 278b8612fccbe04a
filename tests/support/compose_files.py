"""The files of compose/: their content, and the jobs that they start."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from contract.options import ConfigError
from entrypoint.commands.plan import plan
from entrypoint.config.read import read_settings
from tests.support.repository import ROOT

COMPOSE, PAGES = ROOT / "compose", ROOT / "docs" / "platforms"
SKY = ("task", "managed")


def yaml_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return content


def json_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((COMPOSE / name).read_text())
    return content


def jobs() -> dict[str, list[str]]:
    """The job's flags of each file that has a job of its own."""
    task = yaml_of("dstack/task.dstack.yml")["commands"]
    (node,) = json_of("aws-batch/job-definition.json")["nodeProperties"]["nodeRangeProperties"]
    words = {
        "dstack": shlex.split(" ".join(task)),
        **{name: words_of_script(yaml_of(f"skypilot/{name}.yaml")["run"]) for name in SKY},
    }
    found = {name: line[line.index("rollcall") + 1 :] for name, line in words.items()}
    found["aws"] = node["container"]["command"]
    found["chart"] = yaml_of("kubernetes/chart/values.yaml")["job"]
    for name in ("head", "instant-cluster"):
        found[name] = json_of(f"runpod/{name}.json")["dockerStartCmd"]
    return found


def words_of_script(script: str) -> list[str]:
    return shlex.split(script.replace("\\\n", " "), comments=True)


def planned(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        return plan(read_settings(environ))
    except ConfigError as error:
        return plan(error)
