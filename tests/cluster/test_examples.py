"""The examples that train on a CPU, by their own commands, on a cluster that they share."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbclient import NotebookClient

from tests.support import examples
from tests.support.examples import EXAMPLES, IMAGES, README, TRAINED
from tests.support.ray_nodes import cluster_of
from tests.support.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SLOW = ("tools.py", "async.yaml")
STEPS = re.compile(r"--max_steps \d+")


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with cluster_of({"num_cpus": 4}) as address:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        yield os.environ | own | {"RAY_ADDRESS": address}


@pytest.fixture(scope="module")
def directory(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's copy, with the data that the page has made once; the model has seen little."""
    root = tmp_path_factory.mktemp("user")
    shutil.copytree(EXAMPLES, root / "examples")
    (script,) = examples.scripts(README)
    run(STEPS.sub("--max_steps 5", script), root, environment)
    return root


def run(script: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.faults) if name in SLOW else name for name in TRAINED],
)
def test_an_example_trains_by_its_own_command(
    name: str, directory: Path, environment: dict[str, str]
) -> None:
    command = examples.command(name)
    assert command is not None
    run(f"{command} --max_steps 2", directory, environment)
    (made,) = re.findall(r"--(?:run_dir|save_path) (\S+)", command)
    (model, *_) = (directory / made).rglob("model.safetensors")
    assert model.stat().st_size > 0


@pytest.mark.faults
def test_the_example_of_images_trains(directory: Path, environment: dict[str, str]) -> None:
    said = run(f"{examples.command(IMAGES)} 2", directory, environment)
    assert re.search(r"^reward 0\.\d\d in the first step, 0\.\d\d in the last$", said, re.M)


@pytest.mark.faults
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    directory: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = examples.notebook()
    for cell in notebook.cells:
        cell.source = re.sub(r"^steps = \d+", "steps = 2", cell.source, flags=re.M)
        cell.source = STEPS.sub("--max_steps 5", cell.source)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # of an editor that was started elsewhere
    where = {"path": directory / "examples"}  # as Jupyter starts it
    client = NotebookClient(notebook, timeout=300, resources={"metadata": where})
    done = client.execute()
    shown = [output for cell in done.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert "image/png" in kinds, "a curve"
    assert "Result(steps=2," in str(shown)
