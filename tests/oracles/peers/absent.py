"""Empty modules in the place of packages that the peers import and the oracles never reach.

OpenRLHF's files import DeepSpeed, vLLM, flash-attention and PEFT at the top; its losses, rewards,
advantages and penalties are plain torch. Every name of an empty module is a class that raises when
it is called, so that a function under test that did need the package would fail, not go on with
something else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Absent(type):
    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{cls.__name__} belongs to a package that is empty here")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__name__}.{name}")


def absent(name: str) -> Absent:
    return Absent(name, (), {})


class EmptyModules(MetaPathFinder, Loader):
    """Finds `packages` and everything below them, installed or not: the same on every machine."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.split(".")[0] not in self.packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        def name_of(name: str) -> Absent:
            if name.startswith("__"):
                raise AttributeError(name)
            return absent(f"{module.__name__}.{name}")

        vars(module)["__getattr__"] = name_of


@contextmanager
def empty_modules(*packages: str) -> Iterator[None]:
    """Within the block `packages` can be imported; after it they are as absent as before.

    OpenRLHF looks for flash-attention again when it is called, and has a way without.
    """
    finder = EmptyModules([name for name in packages if name not in sys.modules])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] in finder.packages]:
            del sys.modules[name]
