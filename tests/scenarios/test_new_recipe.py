"""CONTRIBUTING's "Add a recipe" is complete: a recipe by its folder and one line, on a copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

TOY = """
from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence

from entrypoint.config.settings import Settings
from entrypoint.job.job_end import Lacking, of_given_steps
from entrypoint.job.recipes.base import JobCommand, MemoryAdvice, Recipe
from entrypoint.job.recipes.typed_command import Match, TypedCommand

STEP = re.compile(r"toy at (?P<step>\\d+)")


class Toy(Recipe):
    model_flags = ("--toy-model",)
    output_flags = ("--toy-output",)

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.OWN if typed.name == "toytrain" else Match.NONE

    def faults(self, settings: Settings) -> Sequence[str]:
        return ["give --toy-model"] if "--toy-model" not in settings.job else []

    def look_for_files(self, settings: Settings) -> None:
        pass

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        first = (resume_from or 0) + 1
        return JobCommand((sys.executable, "-c", f"print('toy at {first}')"), {"TOY": "1"})

    def latest(self, settings: Settings) -> int | None:
        kept = sorted(settings.run_dir.glob("toy-*"))
        return int(kept[-1].name[4:]) if kept else None

    def step_pattern(self, settings: Settings) -> re.Pattern[str]:
        return STEP

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return MemoryAdvice(gpu="a smaller toy", node="a smaller toy")

    def effect(self, changed: Collection[str]) -> str:
        return "It holds from the next step on"

    def lacking_at_end(self, settings: Settings) -> Lacking:
        return of_given_steps


RECIPE = Toy()
"""
SUPERVISE = """
import json, subprocess, sys
from dataclasses import replace
from pathlib import Path

from contract.run_dir import RunFiles
from entrypoint.job import run_identity
from entrypoint.job.recipes.recognise import recipe_of
from entrypoint.run import run_facts
from tests.support.world import DIED, FINISHED, World

root = Path(sys.argv[1])
started = []

def act(world):
    command = world.jobs.commands[-1]
    said = subprocess.run(command.argv, capture_output=True, text=True, check=True).stdout
    started.append([said.strip(), command.env["TOY"]])
    world.jobs.tell(said)
    if len(started) == 1:
        (root / "toy-1").mkdir()
        return DIED
    return FINISHED

world = World(root, act, act, ROLLCALL_RECIPE="toy")
job = ("toytrain", "--toy-model", "org/tiny")
world.context.settings = replace(world.settings, job=job)
run_identity.identify(world.context.settings, RunFiles(root))
outcome = world.lives()
print(json.dumps({
    "recipe": recipe_of(["toytrain", "--x"]),
    "outcome": outcome.name,
    "started": started,
    "step": world.context.progress().step,
    "model": run_facts.read(RunFiles(root))["model"],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with a recipe `toy`: its folder and a line in the registry."""
    root = tmp_path_factory.mktemp("tree")
    packages = ("contract", "entrypoint", "env", "trainer", "tests/support")
    for package in packages:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("*.pyc"))
    folder = root / "entrypoint/job/recipes/toy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "recipe.py").write_text(TOY)
    registry = root / "entrypoint/config/recipe_registry.py"
    line = '    "command": RecipeTraits(),\n'
    text = registry.read_text()
    assert text.count(line) == 1
    registry.write_text(text.replace(line, f'    "toy": RecipeTraits(),\n{line}'))
    return root


def ran(copy: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("ROLLCALL_")}
    env = {**clean, "PYTHONPATH": str(copy), **variables}
    return subprocess.run(
        [sys.executable, *words], cwd=copy, env=env, capture_output=True, text=True, check=False
    )


def test_plan_knows_the_recipe(copy: Path, tmp_path: Path) -> None:
    variables = {"ROLLCALL_RECIPE": "toy", "ROLLCALL_RUN_DIR": str(tmp_path)}
    plan = ("-m", "entrypoint", "plan", "--json", "--", "toytrain")
    done = ran(copy, *plan, "--toy-model", "m", **variables)
    row = json.loads(done.stdout)
    assert (row["recipe"], row["faults"]) == ("toy", []), done.stderr
    (fault,) = json.loads(ran(copy, *plan, **variables).stdout)["faults"]
    assert "give --toy-model" in fault["problem"]


def test_a_misspelt_recipe_is_told_of_it(copy: Path) -> None:
    done = ran(copy, "-m", "entrypoint", "plan", ROLLCALL_RECIPE="toys")
    assert "builtin, toy, command" in done.stderr


def test_a_submitted_command_is_recognised_supervised_and_resumed(
    copy: Path, tmp_path: Path
) -> None:
    done = ran(copy, "-c", SUPERVISE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "recipe": "toy",
        "outcome": "finished",
        "started": [["toy at 1", "1"], ["toy at 2", "1"]],
        "step": 2,
        "model": "tiny",
    }
