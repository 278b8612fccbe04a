"""What an exception of a user's code tells: the user's line, and whether another try can help."""

from __future__ import annotations

import difflib
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOT_THE_USERS = tuple(
    f"{path}/"
    for path in (
        *(ROOT / name for name in ("contract", "entrypoint", "env", "trainer")),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)
"""Directories of this product and of installed packages."""
FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
"""FILE.py:NAME of a user's function."""
TORCH_CUDA = "/torch/cuda/"
NETWORK = (
    *("aiohttp", "anthropic", "botocore", "grpc", "httpcore", "httpx", "litellm", "openai"),
    *("requests", "urllib3", "websockets"),
)
"""Packages whose own exceptions are about a server."""
LONGEST = 300
"""Characters of an exception's text that are kept."""
WRONG_FILES = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
BUGS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, RecursionError, StopIteration, SyntaxError, SystemExit, TypeError),
    ValueError,
)


class Cause(StrEnum):
    """What another try of the same call would change."""

    BUG = "bug"
    """Nothing: the code itself is wrong, or does not fit the data."""
    OUTAGE = "outage"
    """A server, a disk or a GPU is away: the next try may succeed, and so may another machine."""
    OTHER = "other"
    """Nobody knows."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a user's code raised."""

    name: str
    """Its class; empty for one of this product, whose text says all."""
    text: str
    cause: Cause
    file: str = ""
    """The user's file, and `line` in it; empty, and 0, if no line is known."""
    line: int = 0
    package: str = ""
    """The module that is not installed, if that is why."""
    of_here: bool = False
    """Whether a package or a file is missing, which another machine may have."""

    def __str__(self) -> str:
        what = ": ".join(filter(None, (self.name, self.text)))
        return f"{what} ({self.place})" if self.file else what

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def is_like(self, other: Raised) -> bool:
        """Return whether both are one fault: the same class at the same line."""
        return (self.name, self.file, self.line) == (other.name, other.file, other.line)

    @classmethod
    def of(cls, error: BaseException, code: object = None) -> Raised:
        """Return what an exception tells. `code`: the function that was called.

        The place is of the function that an error names as its `code_at_fault`, else the innermost
        line of the user's own code, else where `code` is defined.
        """
        named = getattr(error, "code_at_fault", None)
        at = defined_at(named) if named else ("", 0)
        file, line = at if at[0] else _place_in(error) or defined_at(code)
        told = error.msg if isinstance(error, SyntaxError) else str(error)  # the place is beside it
        text = " ".join(told.split())
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
        is_own = type(error).__module__.startswith("env.")
        package = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        return cls(
            name="" if is_own else type(error).__name__,
            text=shown,
            cause=cause_of(error),
            file=file,
            line=line,
            package=package.partition(".")[0],
            of_here=isinstance(error, (ImportError, *WRONG_FILES)),
        )


def cause_of(error: BaseException) -> Cause:
    """Return what another try would change."""
    chain = list(_chain(error))
    innermost = traceback.extract_tb(chain[-1].__traceback__)
    if any(TORCH_CUDA in frame.filename for frame in innermost[-1:]):
        return Cause.OUTAGE
    if isinstance(error, WRONG_FILES):
        return Cause.BUG
    if any(map(_is_outage, chain)):
        return Cause.OUTAGE
    return Cause.BUG if isinstance(error, BUGS) else Cause.OTHER


def same_fault(raised: Sequence[Raised | None]) -> Raised | None:
    """Return the exception that all calls raised; None if one call raised no or another one."""
    first = raised[0] if raised else None
    each = [one for one in raised if one is not None and first and one.is_like(first)]
    return first if len(each) == len(raised) else None


def defined_at(code: object) -> tuple[str, int]:
    """Return file and line where a function or the class of an object is defined; else "" and 0."""
    try:
        code = inspect.unwrap(getattr(code, "func", code))  # type: ignore[arg-type]
        if not (inspect.isfunction(code) or inspect.isclass(code) or inspect.ismethod(code)):
            code = type(code)
        file = inspect.getsourcefile(code)
        line = inspect.getsourcelines(code)[1]
    except (OSError, TypeError, ValueError):
        return "", 0
    is_users = file and not file.startswith(NOT_THE_USERS)
    return (_shown(file), line) if file and is_users else ("", 0)


def callables_in(module: object) -> list[str]:
    """Return the names of the functions and classes that a module itself defines."""
    own = getattr(module, "__name__", "")
    return [
        name
        for name, one in vars(module).items()
        if callable(one) and not name.startswith("_") and getattr(one, "__module__", "") == own
    ]


def offered(name: str, module: object) -> str:
    """Return a clause that names what a module defines instead of `name`."""
    names = callables_in(module)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {near[0]}?"
    return f"it defines {', '.join(names)}" if names else "it defines no function"


OF_VERL, OF_VERL_BATCH = "solution_str", "solution_strs"
"""The parameter of a reward function of verl's kind: it gets one completion, or all of a batch."""


def is_of_verl(parameters: Collection[str]) -> bool:
    """Return whether a reward function with these parameters is of verl's kind."""
    return OF_VERL in parameters or OF_VERL_BATCH in parameters


class SignatureError(TypeError):
    """A user's function does not take its arguments; the message says what would be right."""


def check_signature(
    function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raise SignatureError unless the function takes these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin has none
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        raise SignatureError(_misfit(function, signature, arguments, named, error)) from None


def _misfit(
    function: Callable[..., Any],
    signature: inspect.Signature,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    error: TypeError,
) -> str:
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    name = getattr(function, "__name__", type(function).__name__)
    shown = f"{name}{inspect.Signature(bare)}"
    kinds = inspect.Parameter
    by_name = {kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY}
    wanted = {
        name
        for name, one in signature.parameters.items()
        if one.kind in by_name and one.default is kinds.empty
    }
    if arguments or not named:
        count = f"{len(arguments)} argument{'' if len(arguments) == 1 else 's'}"
        return f"{shown} is called with {count}: {error}"
    if missing := sorted(wanted - set(named)):
        known = sorted(set(named) - wanted)
        near = [like for one in missing for like in difflib.get_close_matches(one, known, n=1)]
        meant = f". Did you mean {near[0]}?" if near else ""
        return f"{shown} needs {_listed(missing)}, and is called with {_listed(named)}{meant}"
    extra = [name for name in named if name not in signature.parameters]
    return f"{shown} does not take {_listed(extra)}: add **kwargs to its parameters"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _place_in(error: BaseException) -> tuple[str, int] | None:
    if isinstance(error, SyntaxError) and error.filename:
        return _shown(error.filename), error.lineno or 0
    for one in reversed(list(_chain(error))):
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            is_file = not frame.filename.startswith(("<", *NOT_THE_USERS))
            if is_file and frame.lineno:
                return _shown(frame.filename), frame.lineno
    return None


def _shown(file: str) -> str:
    """Return a path as the user would type it in the working directory."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, and those from which it was raised."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, OSError | MemoryError) and not isinstance(error, WRONG_FILES):
        return True
    return any(kind.__module__.partition(".")[0] in NETWORK for kind in type(error).__mro__)
