"""What publishes the package and the image, as far as that needs no credential."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PYTHON = ROOT / ".release/bin/python"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
INVENTORY = "os\tdebian\t12\ndeb\tlibc6\t2.36-9\npypi\tray\t2.55.0\npypi\tray\t2.55.0\n"

needs_release = pytest.mark.skipif(
    not (ROOT / ".release/.done").exists(), reason="needs make .release/.done"
)


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables}
    return subprocess.run([ROOT / script], env=environ, capture_output=True, text=True)


def sbom(inventory: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [PYTHON, ROOT / "release/sbom.py", "team/rollcall:cuda"]
    return subprocess.run(command, input=inventory, capture_output=True, text=True)


@needs_release
def test_the_sbom_of_an_image_has_each_package_once() -> None:
    """`release/sbom.py` itself holds it to the schema of CycloneDX."""
    done = sbom(INVENTORY)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["metadata"]["component"]["name"] == "team/rollcall:cuda"
    assert sorted(one["purl"] for one in made["components"]) == [
        "pkg:deb/debian/libc6@2.36-9",
        "pkg:generic/debian@12",
        "pkg:pypi/ray@2.55.0",
    ]


@needs_release
def test_an_inventory_that_lacks_a_kind_makes_no_sbom() -> None:
    done = sbom("os\tdebian\t12\npypi\tray\t2.55.0\n")
    assert done.returncode == 1
    assert "the inventory names no deb" in done.stderr


def test_an_image_that_has_no_name_is_refused() -> None:
    done = run("release/image.sh", DRY_RUN="1", ENGINE="sh")
    assert (done.returncode, "IMAGE is missing" in done.stderr) == (64, True)


def test_an_engine_or_a_signer_that_is_not_installed_is_named() -> None:
    done = run("release/image.sh", DRY_RUN="1", ENGINE="no-engine", IMAGE="x")
    assert (done.returncode, "no-engine is not installed" in done.stderr) == (64, True)
    done = run("release/image.sh", ENGINE="sh", IMAGE="x", PATH="/nowhere:/bin:/usr/bin")
    assert (done.returncode, "cosign is not installed" in done.stderr) == (64, True)


@needs_release
@pytest.mark.slow
def test_a_dry_run_builds_the_package_and_its_sbom_and_signs_nothing(tmp_path: Path) -> None:
    done = run("release/package.sh", DRY_RUN="1", DIST=str(tmp_path))
    assert done.returncode == 0, done.stderr
    name = f"rollcall-{VERSION}"
    listed = {path.name for path in tmp_path.iterdir()}
    assert listed == {f"{name}-py3-none-any.whl", f"{name}.tar.gz", f"{name}.cdx.json"}
    made = json.loads((tmp_path / f"{name}.cdx.json").read_text())
    root = made["metadata"]["component"]
    assert (root["name"], root["version"]) == ("rollcall", VERSION)
    versions = {one["name"]: one["version"] for one in made["components"]}
    assert versions["ray"] == "2.55.0"
    assert versions["torch"] == "2.13.0"
