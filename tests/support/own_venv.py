"""An environment that has a package and what it asks for, and nothing else of this machine's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from contract.launch.distribution import NAME

UV = Path(sys.executable).with_name("uv")


def install(wheel: Path, place: Path, extras: Collection[str] = ()) -> Path:
    """Return the `bin` of a new environment with the wheel and what it requires.

    The required distributions are copied from the environment of the tests, so no index is asked.
    """
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python3*/site-packages")
    python = place / "bin/python"
    command: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        python,
        wheel,
    ]
    subprocess.run(command, check=True)
    (installed,) = Distribution.discover(name=NAME, path=[str(site)])
    for one in _required(installed, extras, set()):
        _copy(one, site)
    return place / "bin"


def _required(
    package: Distribution, extras: Collection[str], seen: set[str]
) -> Iterator[Distribution]:
    """Yield the distributions that a distribution and its extras ask for, each once."""
    for requirement in map(Requirement, package.requires or ()):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if requirement.name == NAME:
            yield from _required(package, requirement.extras, seen)
        elif str(requirement) not in seen:
            seen.add(str(requirement))
            found = distribution(requirement.name)
            yield found
            yield from _required(found, requirement.extras, seen)


def _copy(package: Distribution, site: Path) -> None:
    root = Path(str(package.locate_file("")))
    for file in package.files or ():
        source = root / file
        target = site / file
        if ".." not in file.parts and source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        elif file.parts[-2:-1] == ("bin",) and source.is_file():
            shutil.copy(source, site.parents[2] / "bin" / file.name)
