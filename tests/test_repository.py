"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from contract.launch import distribution
from entrypoint.job.recipes.base import Recipe
from tests.support.planted_faults import FAULTS, Fault
from tests.support.repository import ROOT

TESTS = ROOT / "tests"
PACKAGES = frozenset({"bench", "contract", "entrypoint", "env", "rollcall", "trainer"})
LEVELS = frozenset(
    {"browser", "cluster", "container", "gpu", "learning", "oracles", "slurm", "vllm"}
)


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\n") if name]


def test_imports_go_down_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_imports_from_a_test_a_conftest_or_helpers_of_another_folder() -> None:
    breaches = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in tracked("tests/*.py", "bench/*.py")
        for name in imported(path)
        if name.startswith("tests.") and not may_import(path, name)
    ]
    assert breaches == []


def may_import(path: Path, name: str) -> bool:
    """Whether the name is of tests/support, or of helpers of the level in which the file lies."""
    _, folder, *rest = name.split(".")
    if any(part == "conftest" or part.startswith("test_") for part in (folder, *rest)):
        return False
    return folder == "support" or (folder in LEVELS and TESTS / folder in path.parents)


def imported(path: Path) -> Iterator[str]:
    """Every name that a file imports, dotted, also inside of functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_unit_tests_lie_as_the_source_lies() -> None:
    folders = {path.parent.relative_to(TESTS) for path in tracked("tests/*/test_*.py")}
    assert {folder.parts[0] for folder in folders} <= {
        *PACKAGES,
        *LEVELS,
        "scenarios",
        "program",
        "fuzz",
    }
    units = {folder for folder in folders if folder.parts[0] in PACKAGES}
    assert sorted(str(folder) for folder in units if not (ROOT / folder).is_dir()) == []


@pytest.mark.parametrize("package", sorted(PACKAGES - {"bench"}))
def test_the_top_of_a_package_has_at_most_fifteen_entries(package: str) -> None:
    """A reader takes in no more at a glance. Markers of Python's tools are none."""
    paths = [path.relative_to(ROOT / package) for path in tracked(package)]
    entries = {path.parts[0] for path in paths} - {"__init__.py", "py.typed"}
    assert len(entries) <= 15, sorted(entries)


def test_package_markers_stay_empty() -> None:
    public = ROOT / "rollcall" / "__init__.py"  # the documented Python API
    assert [path for path in tracked("*__init__.py") if path.read_text()] == [public]


def test_an_extra_of_a_tracker_takes_the_version_that_the_tests_log_to() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements/trackers.lock").read_text(), re.M)
    locked = {name: Version(text) for name, text in pins}
    for extra in ("mlflow", "swanlab", "trackio"):
        (wanted,) = map(Requirement, project["optional-dependencies"][extra])
        assert locked[wanted.name] in wanted.specifier


def test_every_extra_resolves_beside_the_trainer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = (ROOT / "requirements/trackers.lock").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", lock, re.MULTILINE))
    extras = project["optional-dependencies"]
    of_trainer = (*extras["page"], *extras["node"], *extras["eval"], *extras["trainer"])
    for text in (*project["dependencies"], *of_trainer):
        wanted = Requirement(text)
        if wanted.name in pinned:
            assert pinned[wanted.name] in wanted.specifier, text


def test_no_other_file_is_empty() -> None:
    files = [path for path in tracked() if path.name != "__init__.py" and path.is_file()]
    assert [path for path in files if path.stat().st_size == 0] == []


def test_no_lock_names_a_registry() -> None:
    for lock in tracked("requirements/*"):
        assert "://" not in lock.read_text(), lock


def test_every_lock_line_has_hashes_of_its_own() -> None:
    for lock in tracked("requirements/*.lock"):
        requirements = re.split(r"\n(?=\S)", lock.read_text().strip())
        bare = [one for one in requirements if "==" in one and "--hash=sha256:" not in one]
        assert bare == [], lock


def test_the_locks_agree_with_the_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked = (ROOT / "requirements/dev.lock").read_text().lower()
    of_trainer = [*extras["page"], *extras["node"], *extras["eval"], *extras["trainer"]]
    for requirement in [*project["dependencies"], *of_trainer, *extras["dev"]]:
        name = re.split(r"[\[<>=]", requirement)[0].lower()
        assert name in ("torch", distribution.NAME) or f"\n{name}==" in f"\n{locked}", requirement


def test_the_versions_of_the_extra_gpu_are_those_of_the_cuda_image() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "requirements/cuda.lock").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", locked, re.MULTILINE))
    named = [*extras["optional-dependencies"]["gpu"], *extras["optional-dependencies"]["vllm"]]
    wanted = [one for one in map(Requirement, named) if one.name != distribution.NAME]
    assert {one.name for one in wanted} == {"liger-kernel", "vllm"}
    assert all(pinned[one.name] in one.specifier for one in wanted)


def test_an_extra_that_a_message_a_page_or_another_extra_names_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert declared["name"] == distribution.NAME
    texts = [path.read_text() for path in tracked("*.py", "*.md", "*.ipynb", "pyproject.toml")]
    named = {
        extra.strip()
        for text in texts
        for found in (
            *re.findall(r"rollcall-rlhf\[([a-z0-9, -]+)\]|\.whl\)\[([a-z]+)\]", text),
            *re.findall(r"distribution\.install\('([a-z0-9-]+)'()\)", text),
        )
        for extra in "".join(found).split(",")
    }
    assert {"eval", "node", "otlp", "page", "trainer", "vllm"} <= named
    other_project = re.compile(r"install '?rollcall[\[' ]|\brollcall==")
    assert [text[:80] for text in texts if other_project.search(text)] == []
    assert named <= declared["optional-dependencies"].keys()


def test_the_line_of_each_planted_fault_stands_once_in_its_package() -> None:
    faults = [Fault(**row) for row in tomllib.loads(FAULTS.read_text())["fault"]]
    assert [fault.old for fault in faults if fault.file(ROOT) is None] == []


MOST_PARAMETERS = 5
MANY_PARAMETERS = frozenset(
    {
        "entrypoint.config.variables.variable",
        "entrypoint.net.wait.until",
        "trainer.models.log_probs._Blockwise.forward",
        "trainer.models.log_probs.token_log_probs",
        "trainer.models.packed_attention.attend",
        "trainer.rollout.rollout_state.PromptGroup",
    }
)
"""Functions and constructors that still have more: take from this list, add nothing to it."""


def parameters_of(module: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions, methods and dataclasses of a module, each with its number of parameters.

    A frozen dataclass is a value and may have any number of fields. Triton's kernels take plain
    pointers and numbers only, so they do not count.
    """
    for node in tree.body:
        if any(ast.unparse(each) == "triton.jit" for each in getattr(node, "decorator_list", ())):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module}.{node.name}", len(names_of(node))
        elif isinstance(node, ast.ClassDef):
            yield f"{module}.{node.name}", len(fields_of(node))
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    own = [name for name in names_of(method) if name not in ("self", "cls")]
                    yield f"{module}.{node.name}.{method.name}", len(own)


def names_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def fields_of(node: ast.ClassDef) -> list[str]:
    """What the constructor of a mutable dataclass is given; private state does not count."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if not any(name.startswith("dataclass") and "frozen=True" not in name for name in decorators):
        return []
    return [
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not field.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(field.annotation)
        and (field.value is None or "init=False" not in ast.unparse(field.value))
    ]


def test_no_other_function_or_constructor_has_more_than_five_parameters() -> None:
    many = {
        name
        for path in tracked("contract/*.py", "entrypoint/*.py", "trainer/*.py")
        for name, count in parameters_of(
            ".".join(path.relative_to(ROOT).with_suffix("").parts), ast.parse(path.read_text())
        )
        if count > MOST_PARAMETERS
    }
    assert many - MANY_PARAMETERS == set()


def test_whatever_a_recipe_must_answer_is_asked() -> None:
    text = "\n".join(path.read_text() for path in tracked("entrypoint/*.py"))
    asked = set(re.findall(r"\b(?:recipe|load\([\w.]+\))\.(\w+)", text))
    asked |= set(re.findall(r"\bself\.(\w+)", text))
    answered = {*vars(Recipe), *Recipe.__annotations__}
    assert {name for name in answered if not name.startswith("_")} - asked == set()


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (declared,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    # `make test` runs this test, too; a make that another make starts prints its directory.
    command = ["make", "--silent", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    helped = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert sorted(helped) == sorted(declared.split())
    assert all(helped.values())


def test_the_hosted_workflow_calls_the_ci_script_and_keeps_logs() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert any("release/audit.py" in step.get("run", "") for step in jobs["audit"]["steps"])
    job = jobs["test"]
    assert any(".ci/run" in step.get("run", "") for step in job["steps"])
    (kept,) = (step for step in job["steps"] if step.get("if") == "failure()")
    assert kept["uses"].startswith("actions/upload-artifact@")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
