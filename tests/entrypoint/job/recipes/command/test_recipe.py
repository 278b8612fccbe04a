"""A `command` with a runtime environment."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import get_top_level_dir_from_compressed_package

from contract.resources import NodeResources
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.job.recipes.base import ArgumentsError
from entrypoint.job.recipes.command.recipe import RECIPE
from trainer.cluster.diagnostics.pack_working_dir import pack


def settings(run: Path, environment: Mapping[str, object], *job: str, **variables: str) -> Settings:
    environ = {
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_RUN_DIR": str(run),
        "ROLLCALL_RUNTIME_ENV": json.dumps(environment),
        **variables,
    }
    return read_settings(environ, job or ("true",))


def test_a_directory_of_the_head_is_packed_for_all_nodes(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name in ("train.py", "large.bin"):
        (code / name).touch()
    environment = {"working_dir": str(code), "excludes": ["*.bin"], "pip": ["einops"]}
    command = RECIPE.command(settings(tmp_path, environment), None)
    (package,) = (tmp_path / "packages").iterdir()
    assert command.runtime_env["working_dir"] == f"file://{package}"
    assert zipfile.ZipFile(package).namelist() == ["train.py", ".rollcall"]
    assert command.runtime_env["pip"] == ["einops"]
    assert "excludes" not in command.runtime_env
    again = RECIPE.command(settings(tmp_path, {"working_dir": str(package)}), None)
    assert again.runtime_env == {"working_dir": f"file://{package}"}


def test_a_directory_keeps_its_shape_and_its_name_by_a_uri(tmp_path: Path) -> None:
    """Ray takes a single top-level directory away, and fetches an archive of a name once."""
    code = tmp_path / "code"
    (code / "src").mkdir(parents=True)
    (code / "src" / "train.py").touch()
    one, other = (pack(code, tmp_path, [])[0] for _ in range(2))
    assert one == other
    assert get_top_level_dir_from_compressed_package(str(one)) is None
    assert pack(one, tmp_path, [])[0].name == one.name


def test_an_archive_that_the_nodes_do_not_see_is_given_to_ray_which_takes_less_than_100_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"_ray_pkg_{'a' * 64}.zip"
    package.write_bytes(b"PK" * 500)
    environment = {"working_dir": str(package)}
    apart = settings(
        tmp_path, environment, ROLLCALL_STORAGE="head", ROLLCALL_TOKEN="a-token-of-all-nodes"
    )
    unseen = settings(tmp_path, environment, ROLLCALL_PREFLIGHT_SKIP="nodes.storage")
    for alone in (apart, unseen):
        assert RECIPE.command(alone, None).runtime_env == environment
    monkeypatch.setattr(working_dir, "MOST_BYTES", 999)
    with pytest.raises(ArgumentsError, match="the nodes do not share the run directory"):
        RECIPE.command(alone, None)
    odd = tmp_path / "a % b" / package.name  # Ray would not find it by a URI
    odd.parent.mkdir()
    package.rename(odd)
    with pytest.raises(ArgumentsError):
        RECIPE.command(settings(tmp_path, {"working_dir": str(odd)}), None)


def test_the_actors_of_a_submitted_job_know_its_run_directory(tmp_path: Path) -> None:
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_WAIT_FOR_JOBS": "1"}
    submitted = replace(read_settings(environ), job=("true",), runtime_env={"env_vars": {"A": "b"}})
    assert RECIPE.command(submitted, None).runtime_env == {
        "env_vars": {"A": "b", "ROLLCALL_RUN_DIR": str(tmp_path)}
    }


def test_an_archive_elsewhere_is_rays_to_fetch(tmp_path: Path) -> None:
    environment = {"working_dir": "https://example.org/code.zip"}
    assert RECIPE.faults(settings(tmp_path, environment)) == []
    assert RECIPE.command(settings(tmp_path, environment), None).runtime_env == environment


def test_a_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = settings(tmp_path, {"working_dir": str(tmp_path / "gone")})
    assert "gone of the runtime environment is not there" in RECIPE.faults(gone)[0]
    with pytest.raises(ArgumentsError, match="gone is neither a directory nor"):
        RECIPE.command(gone, None)


def test_a_directory_may_begin_with_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home/code").mkdir(parents=True)
    (tmp_path / "home/code/train.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given = settings(tmp_path, {"working_dir": "~/code"})
    assert RECIPE.faults(given) == []
    assert RECIPE.command(given, None).runtime_env["working_dir"].startswith("file:///")
    (fault,) = RECIPE.faults(settings(tmp_path, {"working_dir": "~nobody-of-this-name/code"}))
    assert "~nobody-of-this-name/code of the runtime environment is not there" in fault


@pytest.mark.parametrize("environment", [{"pip": ["axolotl"]}, {"uv": ["axolotl"]}])
def test_a_program_may_come_with_the_packages(
    tmp_path: Path, environment: dict[str, object]
) -> None:
    assert RECIPE.faults(settings(tmp_path, environment, "axolotl", "train")) == []
    assert RECIPE.faults(settings(tmp_path, {"env_vars": {"A": "b"}}, "axolotl", "train"))


def test_words_before_the_program_are_its_variables(tmp_path: Path) -> None:
    given = settings(tmp_path, {}, "A=1", "B=x=y", "sh", "-c", "echo $A", "C=2")
    assert RECIPE.faults(given) == []
    command = RECIPE.command(given, None)
    assert command.argv == ("sh", "-c", "echo $A", "C=2")
    assert (command.env["A"], command.env["B"]) == ("1", "x=y")
    (fault,) = RECIPE.faults(settings(tmp_path, {}, "A=1", "no-such-program"))
    assert fault.startswith("no-such-program is not a program")
    (fault,) = RECIPE.faults(settings(tmp_path, {}, "A=1"))
    assert fault == "A=1 has no program behind it: give the command that runs with it"


def test_a_program_is_looked_for_on_the_path_that_the_words_give(tmp_path: Path) -> None:
    (tmp_path / "train").touch(mode=0o755)
    assert RECIPE.faults(settings(tmp_path, {}, f"PATH={tmp_path}", "train")) == []


@pytest.mark.parametrize("job", ["mpirun -np 8 python train.py", "tune run single --config c"])
def test_what_starts_nothing_on_the_workers_is_a_warning_if_there_are_any(
    tmp_path: Path, job: str
) -> None:
    head, worker = NodeResources(name="head", gpus=8), NodeResources(name="worker-1", gpus=8)
    alone = settings(tmp_path, {}, *job.split())
    assert RECIPE.warnings(alone) == RECIPE.placed(alone, [head]).warnings == ()
    with_workers = settings(tmp_path, {}, *job.split(), EXPECTED_WORKERS="1")
    (warning,) = RECIPE.warnings(with_workers)
    assert " starts processes on the head, and nothing on the other nodes: " in warning
    assert RECIPE.placed(alone, [head, worker]).warnings == (warning,)
    assert RECIPE.warnings(settings(tmp_path, {}, "true", EXPECTED_WORKERS="1")) == ()


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("torchrn train.py", "did you mean torchrun?"),
        ("mpirun -np 8 python train.py", "`torchrun train.py …` runs a script on every GPU"),
        ("srun python train.py", "docs/platforms/slurm.md has the file for Slurm"),
    ],
)
def test_a_launcher_that_is_not_there_has_a_remedy(
    tmp_path: Path, job: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (fault,) = RECIPE.faults(settings(tmp_path, {}, *job.split()))
    assert fault.startswith(f"{job.split()[0]} is not a program on this node: {says}")
