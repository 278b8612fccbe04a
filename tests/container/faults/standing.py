"""Keeps a scene from one fault to the next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, Protocol, TypeVar


class Kept(AbstractContextManager[Any], Protocol):
    def boot(self) -> None:
        """Start the nodes, and wait until they train."""

    def trains(self) -> bool: ...


K = TypeVar("K", bound=Kept)


class Standing(Generic[K]):
    """A scene that trains: the one that outlived the fault before, else a new one."""

    def __init__(self, make: Callable[[int], K]) -> None:
        """`make`: a scene that has not started; it is told how many came before."""
        self._make = make
        self._stack = ExitStack()
        self._scene: K | None = None
        self._count = 0

    def scene(self) -> K:
        if self._scene is None or not self._scene.trains():
            self.close()
            new = self._make(self._count)
            self._count += 1
            self._stack.enter_context(new)
            new.boot()
            self._scene = new
        return self._scene

    def close(self) -> None:
        self._stack.close()
        self._scene = None
