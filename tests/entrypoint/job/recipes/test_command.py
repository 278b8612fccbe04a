"""A `command` with a runtime environment."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.recipes.base import ArgumentsError
from entrypoint.job.recipes.command import RECIPE


def settings(run: Path, environment: Mapping[str, object], *job: str) -> Settings:
    environ = {
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_RUN_DIR": str(run),
        "ROLLCALL_RUNTIME_ENV": json.dumps(environment),
    }
    return read_settings(environ, job or ("true",))


def test_a_directory_of_the_head_is_packed_for_all_nodes(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name in ("train.py", "large.bin"):
        (code / name).touch()
    environment = {"working_dir": str(code), "excludes": ["*.bin"], "pip": ["einops"]}
    command = RECIPE.command(settings(tmp_path, environment), None)
    package = Path(command.runtime_env["working_dir"])
    assert package.parent == tmp_path / "packages"
    assert zipfile.ZipFile(package).namelist() == ["train.py"]
    assert command.runtime_env["pip"] == ["einops"]
    assert "excludes" not in command.runtime_env
    again = RECIPE.command(settings(tmp_path, {"working_dir": str(package)}), None)
    assert again.runtime_env == {"working_dir": str(package)}


def test_an_archive_elsewhere_is_rays_to_fetch(tmp_path: Path) -> None:
    environment = {"working_dir": "https://example.org/code.zip"}
    assert RECIPE.faults(settings(tmp_path, environment)) == []
    assert RECIPE.command(settings(tmp_path, environment), None).runtime_env == environment


def test_a_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = settings(tmp_path, {"working_dir": str(tmp_path / "gone")})
    assert "gone of the runtime environment is not there" in RECIPE.faults(gone)[0]
    with pytest.raises(ArgumentsError, match="gone is neither a directory nor"):
        RECIPE.command(gone, None)


@pytest.mark.parametrize("environment", [{"pip": ["axolotl"]}, {"uv": ["axolotl"]}])
def test_a_program_may_come_with_the_packages(
    tmp_path: Path, environment: dict[str, object]
) -> None:
    assert RECIPE.faults(settings(tmp_path, environment, "axolotl", "train")) == []
    assert RECIPE.faults(settings(tmp_path, {"env_vars": {"A": "b"}}, "axolotl", "train"))
