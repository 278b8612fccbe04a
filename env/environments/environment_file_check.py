"""What is wrong with a user's file of an environment, an agent or a function, read and not run.

A user's file may import anything and do anything, so nothing here executes it: the check is of
syntax, of names and of the signatures of methods. `trainer.rollout.try_code` runs an episode.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from env import verifiers_package
from env.environments.registry import ENVIRONMENTS
from env.types import IN_PYTHON
from env.user_code import defined_at

METHODS: Mapping[str, int] = {"reset": 1, "step": 1, "score": 1, "close": 0}
"""Methods of an environment → arguments after self."""
AGENT_METHODS: Mapping[str, int] = {"reset": 1, "step": 1}
BLOCKING = (
    *("time.sleep", "requests.", "urllib.request.", "httpx.get", "httpx.post", "os.system"),
    *("subprocess.run", "subprocess.check_output", "subprocess.check_call", "socket.create_conn"),
)
"""Calls that hold up all other episodes inside an `async def`."""
BASE_PACKAGES = ("rollcall", "env", "openrlhf")
"""Packages whose classes an environment or an agent derives from."""
AGENT_CLASS = "AgentExecutor"


@dataclass(frozen=True, slots=True)
class Source:
    """What reading a file has shown."""

    spec: str
    path: Path | None = None
    missing: str = ""
    """Why the file cannot be read."""
    fault: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()


def environment(spec: str) -> Source:
    """Check what --environment names: a registered name, FILE.py:CLASS, or verifiers:NAME."""
    if spec in (*ENVIRONMENTS, IN_PYTHON):
        return Source(spec)
    if spec.startswith(verifiers_package.PREFIX):
        fault, remedy = verifiers_package.fault_and_remedy(spec)
        return Source(spec, fault=fault, remedy=remedy)
    file, colon, name = spec.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        names = [name for name in ENVIRONMENTS if name != IN_PYTHON]
        remedy = f"Give one of {', '.join(names)}, FILE.py:CLASS, or verifiers:NAME"
        if near := difflib.get_close_matches(spec, names, n=1):
            remedy = f"Did you mean {near[0]}? {remedy}"
        return Source(spec, fault="is not an environment", remedy=remedy)
    return _checked(spec, Path(file), name, METHODS)


def agent(spec: str) -> Source:
    """Check what --agent_func_path names: a .py file with OpenRLHF's AgentExecutor."""
    if not spec.endswith(".py"):
        remedy = f"Give a .py file with the class {AGENT_CLASS}"
        return Source(spec, fault="is no .py file", remedy=remedy)
    return _checked(spec, Path(spec), AGENT_CLASS, AGENT_METHODS)


def function(spec: str, arguments: Sequence[str]) -> Source:
    """Check FILE.py:NAME of a function that is called with these arguments, by position."""
    file, _, name = spec.rpartition(":")
    path, shown = Path(file), f"{name}({', '.join(arguments)})"
    tree = _parsed(spec, path)
    if isinstance(tree, Source):
        return tree
    fault = next((said for node in tree.body if (said := _unfit(node, name, len(arguments)))), "")
    if not fault and _names(tree).isdisjoint((name, "*")):
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        remedy = f"It has {', '.join(functions)}" if functions else "It has no function"
        return Source(spec, path, fault=f"the file defines no {name}", remedy=remedy)
    return Source(spec, path, fault=fault, remedy=f"Write `def {shown}` in {path}")


def _unfit(node: ast.stmt, name: str, arguments: int) -> str:
    """Return why a statement's definition of `name` is no such function; "" if it may be one."""
    where = f"{name}, line {node.lineno},"
    count = "1 argument" if arguments == 1 else f"{arguments} arguments"
    if isinstance(node, ast.FunctionDef) and node.name == name:
        return "" if _takes(node.args, arguments) else f"{where} must take {count}"
    if isinstance(node, ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
        kind = "a class" if isinstance(node, ast.ClassDef) else "`async def`"
        return f"{where} is {kind}, not a function"
    targets = node.targets if isinstance(node, ast.Assign) else []
    if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
        return ""
    value = getattr(node, "value", None)
    is_value = isinstance(value, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set)
    return f"{where} is a value, not a function" if is_value else ""


def _parsed(spec: str, path: Path) -> ast.Module | Source:
    """Return the syntax tree of a file, or why there is none."""
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        return Source(spec, path, missing=error.strerror or str(error))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}" if line else "the file"
        fault = f"{where} is not Python code: {getattr(error, 'msg', error)}"
        return Source(spec, path, fault=fault, remedy=f"Correct {path}")


def _checked(spec: str, path: Path, name: str, methods: Mapping[str, int]) -> Source:
    tree = _parsed(spec, path)
    if isinstance(tree, Source):
        return tree
    names = _names(tree)
    if names.isdisjoint((name, "*")):
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        remedy = f"It has {', '.join(classes)}" if classes else "It has no class"
        return Source(spec, path, fault=f"the file defines no {name}", remedy=remedy)
    is_elsewhere = name not in names  # behind `import *`, or nowhere: a trial says it
    own = list(_methods(tree, methods, None if methods is AGENT_METHODS else name))
    own = [] if is_elsewhere and methods is METHODS else own
    fault = next(_signature_faults(own, methods), "")
    warnings = tuple(_blocking(own, path, _imported(tree)))
    return Source(spec, path, fault=fault, remedy=f"Correct {path}", warnings=warnings)


def _names(tree: ast.Module) -> frozenset[str]:
    """Return the names that the file defines or imports; `*` if it imports all of a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


Method = ast.FunctionDef | ast.AsyncFunctionDef


def _methods(
    tree: ast.Module, names: Mapping[str, int], wanted: str | None
) -> Iterator[tuple[str, Method]]:
    """Yield the methods of these names in environments and agents, with their full names.

    Any other class, such as a simulator that an environment holds, has signatures of its own.
    `wanted`: the class that the run uses, if the file has it; only its methods and those that it
    inherits are yielded.
    """
    bases = _bases(tree)
    found: dict[str, ast.ClassDef] = {}
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef) and not bases.isdisjoint(map(_root, owner.bases)):
            bases |= {owner.name}
            found[owner.name] = owner
    seen: set[str] = set()
    for owner in _with_bases(found, wanted) if wanted in found else found.values():
        for method in owner.body:
            if not isinstance(method, Method) or method.name not in names:
                continue
            if wanted in found and method.name in seen:
                continue  # a derived class has its own
            seen.add(method.name)
            yield f"{owner.name}.{method.name}", method


def _with_bases(found: Mapping[str, ast.ClassDef], name: str) -> list[ast.ClassDef]:
    """Return a class, and then those of the file that it derives from."""
    names = [name]
    for own in names:
        bases = map(_root, found[own].bases)
        names += [base for base in bases if base in found and base not in names]
    return [found[own] for own in names]


def _bases(tree: ast.Module) -> frozenset[str]:
    """Return the names that the file imports from this project and from OpenRLHF."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_base(node.module or ""):
            found |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Import):
            imported = [one for one in node.names if _is_base(one.name)]
            found |= {one.asname or one.name.partition(".")[0] for one in imported}
    return frozenset(found)


def _is_base(module: str) -> bool:
    return module.partition(".")[0] in BASE_PACKAGES


def _root(base: ast.expr) -> str:
    """Return the first name of a base class: `env` of `env.episodes.environment.Environment`."""
    return ast.unparse(base).partition(".")[0].partition("[")[0]


def _signature_faults(
    own: Iterable[tuple[str, Method]], methods: Mapping[str, int]
) -> Iterator[str]:
    for name, method in own:
        if not isinstance(method, ast.AsyncFunctionDef):
            yield f"{name}, line {method.lineno}, must be `async def`"
            continue
        wanted = methods[method.name] + 1
        if not _takes(method.args, wanted):
            arguments = "one argument" if wanted == 2 else "no argument"
            yield f"{name}, line {method.lineno}, must take {arguments} after self"


def _takes(given: ast.arguments, wanted: int) -> bool:
    """Return whether a function with these parameters can be called with `wanted` arguments."""
    most = len(given.posonlyargs) + len(given.args)
    least = most - len(given.defaults)
    unnamed = any(default is None for default in given.kw_defaults)
    return least <= wanted and (most >= wanted or given.vararg is not None) and not unnamed


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the names that the file gives to what it imports, with the full names."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.asname: one.name for one in node.names if one.asname}
    return found


def _full_name(function: ast.expr, imported: Mapping[str, str]) -> str:
    """Return the name of a function; empty for what another call returns."""
    if any(isinstance(node, ast.Call) for node in ast.walk(function)):
        return ""
    first, dot, rest = ast.unparse(function).partition(".")
    return f"{imported.get(first, first)}{dot}{rest}"


def _blocking(
    own: Iterable[tuple[str, Method]], path: Path, imported: Mapping[str, str]
) -> Iterator[str]:
    for name, method in own:
        for node in _run_here(method):
            called = _full_name(node.func, imported) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called.startswith(BLOCKING):
                yield (
                    f"{name} calls {called} ({path}:{node.lineno}), which blocks all other "
                    "episodes: await what it waits for, or call it by asyncio.to_thread"
                )


def blocking_of(kind: type) -> list[str]:
    """Return a sentence for each call in an environment's own methods that blocks all episodes.

    A method whose source nobody has, as of an interactive Python, has none.
    """
    found: list[str] = []
    for name in METHODS:
        function = inspect.getattr_static(kind, name, None)
        file, line = defined_at(function)
        try:
            text = textwrap.dedent(inspect.getsource(function))
            (method,) = ast.parse(text).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        if file and inspect.iscoroutinefunction(function) and isinstance(method, Method):
            ast.increment_lineno(method, line - 1)
            imported = _in_scope(function.__globals__)
            found += _blocking([(f"{kind.__name__}.{name}", method)], Path(file), imported)
    return found


def _in_scope(names: Mapping[str, object]) -> dict[str, str]:
    """Return the full names of the modules and functions in a namespace, as `_imported` does."""
    full = {name: one.__name__ for name, one in names.items() if inspect.ismodule(one)}
    for name, one in names.items():
        if inspect.isroutine(one) and getattr(one, "__module__", None):
            full[name] = f"{one.__module__}.{getattr(one, '__qualname__', name)}"
    return full


def _run_here(method: ast.AST) -> Iterator[ast.AST]:
    """Yield what the method itself runs: a function inside may be for `asyncio.to_thread`."""
    for node in ast.iter_child_nodes(method):
        if not isinstance(node, ast.Lambda | ast.FunctionDef):
            yield node
            yield from _run_here(node)
