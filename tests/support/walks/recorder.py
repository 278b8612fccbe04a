"""Records which functions of this product run, in each process that has it as `sitecustomize`.

Each function begins with a call of the recorder, which is added when its module is imported. So
threads of other languages are seen, and nothing else is slowed down. A function is written at most
once each `PAUSE` seconds for each thread, and not if an import calls it.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

PAUSE = 0.02
PACKAGES = ("contract", "entrypoint", "env", "rollcall", "trainer")
ROOT = os.environ["WALK_ROOT"]
LOG = Path(os.environ["WALK_LOG"])
TITLE = Path("/proc/self/cmdline")


class Marked(ast.NodeTransformer):
    """Adds the call to each function, after its docstring."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._within: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._named(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._named(node)
        name = ".".join([*self._within, node.name])
        (call,) = ast.parse(f"__walk__({self._file!r}, {name!r})").body
        for part in ast.walk(call):
            ast.copy_location(part, node.body[0])
        node.body.insert(1 if ast.get_docstring(node) is not None else 0, call)
        return node

    def _named(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()
        return node


class Recorder:
    def __init__(self) -> None:
        self._next: dict[tuple[str, str, int], float] = {}
        self._pid = 0
        self._log = -1

    def __call__(self, file: str, function: str) -> None:
        now, key = time.time(), (file, function, threading.get_ident())
        if now < self._next.get(key, 0.0) or imported():
            return
        self._next[key] = now + PAUSE
        if self._pid != os.getpid():  # also after a fork
            self._pid = os.getpid()
            name = LOG / f"{self._pid}-{time.time_ns()}"
            self._log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        title = TITLE.read_text().replace("\0", " ").strip()
        thread = threading.current_thread().name
        row = (f"{now:.6f}", file, function, thread, title[:300])
        os.write(self._log, ("\t".join(row) + "\n").encode())


def imported() -> bool:
    """Return whether an import of this product's runs, and calls what is recorded."""
    frame = sys._getframe(2)
    while before := frame.f_back:
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_name == "<module>" and name.partition(".")[0] in PACKAGES:
            return True
        frame = before
    return False


def compiled(loader: SourceFileLoader, name: str) -> CodeType | None:
    path = loader.get_filename(name)
    file = os.path.relpath(path, ROOT)
    if file.partition("/")[0] not in PACKAGES:
        return usual(loader, name)
    tree = ast.parse(loader.get_data(path))
    code = compile(Marked(file).visit(tree), path, "exec", dont_inherit=True)
    return code if isinstance(code, CodeType) else None


builtins.__walk__ = Recorder()  # type: ignore[attr-defined]
usual = SourceFileLoader.get_code
SourceFileLoader.get_code = compiled  # type: ignore[method-assign,assignment]
