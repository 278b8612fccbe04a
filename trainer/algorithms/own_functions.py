"""A user's own loss or estimator, FILE.py:NAME: its text, the call, and what is wrong with it.

The driver reads the file once, and its text travels to the ranks with their settings. So a node
needs no copy of the file, and a rank that is restarted runs what the others run.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from zlib import crc32

from env.rewards.python_file import look_beside
from env.types import brief
from env.user_code import FUNCTION, Cause, Raised
from trainer.types import TrainingError, UserFormulaError

MEMORY = "OutOfMemoryError"
"""Name of torch's exception, in whose place the code stands that took no more than its share."""


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function of a user's file."""

    flag: str
    """The flag that names it."""
    path: Path
    name: str
    source: str = ""
    """The text of the file."""

    @classmethod
    def read(cls, flag: str, spec: str) -> OwnFunction | None:
        """Return the function that a flag's value names; None for a value of the table.

        Raises UserFormulaError if the file cannot be read.
        """
        if not (found := FUNCTION.fullmatch(spec)):
            return None
        own = cls(flag, Path(found["file"]).absolute(), found["name"])
        try:
            return replace(own, source=own.path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserFormulaError(f"{own}: the file cannot be read: {reason}") from None

    def __str__(self) -> str:
        return f"{self.flag} {self.path}:{self.name}"

    def call(self, *arguments: Any) -> Any:
        """Return what the function returns. Raises UserFormulaError for what it raises."""
        function = _loaded(self)
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            raise self._failed("raised", error) from error

    def load(self) -> Callable[..., Any]:
        """Run the file's text, and return the function. Raises UserFormulaError."""
        filename = str(self.path)
        lines = self.source.splitlines(keepends=True)
        # Tracebacks and torch.compile read lines from here where the file is not on the disk.
        linecache.cache[filename] = (len(self.source), None, lines, filename)
        module = ModuleType(f"rollcall_{self.path.stem}_{crc32(filename.encode()):08x}")
        module.__file__ = filename
        look_beside(self.path)
        sys.modules[module.__name__] = module
        try:
            exec(compile(self.source, filename, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            raise self._failed("on import:", error) from error
        function = getattr(module, self.name, None)
        if not callable(function):
            raise UserFormulaError(f"{self}: the file defines no function {self.name}")
        found: Callable[..., Any] = function
        return found

    def wrong(self, what: str) -> UserFormulaError:
        """Return the error for a function whose result cannot be used."""
        code: CodeType | None = getattr(_loaded(self), "__code__", None)
        where = f" (line {code.co_firstlineno})" if code else ""
        return UserFormulaError(f"{self}{where} {what}")

    def _failed(self, how: str, error: BaseException) -> TrainingError:
        """Return the error for what the user's code raised, with its innermost line."""
        raised = Raised.of(error)
        is_outage = raised.cause is Cause.OUTAGE or raised.name == MEMORY
        return (TrainingError if is_outage else UserFormulaError)(f"{self} {how} {raised}")


@cache
def _loaded(own: OwnFunction) -> Callable[..., Any]:
    return own.load()


def described(value: object) -> str:
    """Return what a value is, for a message."""
    return f"{type(value).__name__} {brief(value)}"
