"""Rollcall's packages have common names (`trainer`, `env`), which modules of a user may have too.

Python imports the first module of a name that it finds: without this, a `trainer.py` in the working
directory would hide Rollcall's. Afterwards both work: `import env` finds Rollcall's package, and
names and submodules that it lacks come from the user's module of that name.

`python -P -m rollcall.own_packages MODULE …` runs a program of Rollcall so.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("contract", "entrypoint", "env", "trainer")


class OwnPackages:
    """A finder for `sys.meta_path`: Rollcall's packages first, then what a user's packages add."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the module is; None for modules of other names."""
        top, _, inner = name.partition(".")
        if top not in NAMES:
            return None
        if not inner:
            return PathFinder.find_spec(name, [str(ROOT)], target)
        found = PathFinder.find_spec(name, path, target)
        if found or "." in inner:
            return found
        return PathFinder.find_spec(
            name, [str(Path(place, top)) for place in _elsewhere(sys.path)], target
        )


def install() -> None:
    """Let the names of Rollcall's packages mean those packages in this process, from now on."""
    if OwnPackages in sys.meta_path:
        return
    users = {name: module for name in NAMES if (module := _of_user(name))}
    for name in users:
        _forget(name)
    sys.meta_path.insert(0, OwnPackages)
    for name in NAMES:
        _extend(__import__(name), users.get(name))


def hiding(places: Sequence[str]) -> list[Path]:
    """Return the modules in these directories that have the name of a package of Rollcall."""
    found = (PathFinder.find_spec(name, [place]) for place in _elsewhere(places) for name in NAMES)
    return [Path(spec.origin) for spec in found if spec is not None and spec.origin]


def _of_user(name: str) -> ModuleType | None:
    """Return what this process has imported by the name; None if nothing, or our package."""
    module = sys.modules.get(name)
    if module is None or Path(getattr(module, "__file__", None) or "").resolve().is_relative_to(
        ROOT / name
    ):
        return None
    return module


def _forget(name: str) -> None:
    """Let the next import find our package. What the user has imported keeps working."""
    ours = ROOT / name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        if _is_ours(ours.joinpath(*module.split(".")[1:])):
            del sys.modules[module]


def _is_ours(place: Path) -> bool:
    return place.is_dir() or place.with_suffix(".py").is_file()


def _extend(package: ModuleType, users: ModuleType | None) -> None:
    """Let the package have the names of the user's module too, which is imported when one is."""
    name, own = package.__name__, getattr(package, "__getattr__", None)
    found = [users] if users else []

    def attribute(wanted: str) -> object:
        if own is not None:
            try:
                return own(wanted)
            except AttributeError:
                pass
        # `from trainer import metrics` asks for the attribute first, and then imports the module.
        if not _is_ours(ROOT / name / wanted) and not wanted.startswith("__"):
            if not found:
                found.extend(_loaded(name))
            if found and hasattr(found[0], wanted):
                return getattr(found[0], wanted)
        raise AttributeError(
            f"module '{name}' has no attribute '{wanted}'", name=wanted, obj=package
        )

    package.__dict__["__getattr__"] = attribute


def _loaded(name: str) -> Iterator[ModuleType]:
    """Yield the user's module of the name, if there is one on Python's search path."""
    spec = PathFinder.find_spec(name, list(_elsewhere(sys.path)))
    program = sys.modules["__main__"]
    if spec is None or spec.loader is None:
        return
    if spec.origin and spec.origin == getattr(program, "__file__", None):
        yield program  # the user runs it as a program: it is not run once more
    else:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def _elsewhere(places: Sequence[str]) -> Iterator[str]:
    """Yield the directories other than Rollcall's own."""
    for place in places:
        if Path(place).resolve() != ROOT:
            yield place


if __name__ == "__main__":
    del sys.argv[0]  # `rollcall` was imported before: the finder is installed
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
