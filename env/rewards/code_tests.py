"""The unit tests in a label, and the programs that run them."""

from __future__ import annotations

import ast
import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CALLS = """
import json as _json, sys as _sys
_function = globals().get({name!r}) or getattr(Solution(), {name!r})
_results = []
for _arguments in _json.loads({arguments!r}):
    try:
        _results.append([True, _function(*_arguments)])
    except Exception:
        _results.append([False, None])
    _sys.stdout.flush()
print("\\n" + {mark!r} + _json.dumps(_results, default=list))
"""
ASSERTIONS = """
_passed = []
for _test in {tests!r}:
    try:
        exec(_test, globals())
        _passed.append(True)
    except BaseException:
        _passed.append(False)
print("\\n" + {mark!r} + __import__("json").dumps(_passed))
"""


NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Trial:
    """One program to run, and what its output must show."""

    program: str
    stdin: str = ""
    mark: str = ""
    """What the line with the results begins with; empty: the output is the result."""
    expected: tuple[Any, ...] = ()
    """The output, or of each test the results with which it passes."""

    def passed(self, output: str) -> list[bool]:
        """Whether each test has passed, by the output of a program that finished."""
        if not self.mark:
            return [_shows(output, self.expected[0])]
        said = next((line for line in output.splitlines()[::-1] if line.startswith(self.mark)), "")
        try:
            results = json.loads(said.removeprefix(self.mark))
            if not isinstance(results, list) or len(results) != len(self.expected):
                return self.none
            return [got in wanted for got, wanted in zip(results, self.expected, strict=True)]
        except (ValueError, RecursionError):  # lists in lists, thousands of times
            return self.none

    @property
    def none(self) -> list[bool]:
        return [False] * len(self.expected)


@dataclass(frozen=True, slots=True)
class Tests:
    inputs: tuple[Any, ...] = ()
    """Of a program that reads them, or the arguments of each call."""
    outputs: tuple[Any, ...] = ()
    function: str = ""
    """The function that is called; empty: the program reads its input."""
    assertions: tuple[str, ...] = ()

    def trials(self, code: str) -> list[Trial]:
        """Return the programs that test `code`."""
        mark = f"{secrets.token_hex(16)} "
        if self.assertions:
            program = code + ASSERTIONS.format(tests=self.assertions, mark=mark)
            return [Trial(program, "", mark, ((True,),) * len(self.assertions))]
        if self.function:
            names = {"name": self.function, "arguments": json.dumps(self.inputs), "mark": mark}
            expected = tuple(_results(output) for output in self.outputs)
            return [Trial(code + CALLS.format(**names), "", mark, expected)]
        pairs = zip(self.inputs, self.outputs, strict=True)
        return [Trial(code, stdin, "", (output,)) for stdin, output in pairs]


def read_tests(label: str) -> Tests | None:
    """Return the tests of a label; None if it has none that can be read.

    The label is a JSON object with `inputs` and `outputs` (and `fn_name` for calls), as APPS and
    verl's code data have it; a JSON list of assertions or an object with `test_list`, as MBPP; an
    object with `test` and `entry_point`, as HumanEval; or Python text with assertions.
    """
    try:
        read = json.loads(label)
    except (ValueError, RecursionError):
        read = [label] if "assert" in label else None
    if isinstance(read, list):
        return _assertions(read, "")
    if not isinstance(read, dict):
        return None
    if "inputs" in read:
        return _pairs(read)
    if "test_list" in read:
        setup = read.get("test_setup_code") or _joined(read.get("test_imports") or [])
        return _assertions(read["test_list"], setup)
    if isinstance(read.get("test"), str) and isinstance(read.get("entry_point"), str):
        return _assertions([f"{read['test']}\ncheck({read['entry_point']})"], "")
    return None


def _assertions(tests: object, setup: object) -> Tests | None:
    if not isinstance(tests, list) or not tests or not isinstance(setup, str):
        return None
    if not all(isinstance(test, str) and test.strip() for test in tests):
        return None
    texts = tuple(f"{setup}\n{test}" if setup else test for test in tests)
    try:
        for text in texts:
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Tests(assertions=texts)


def _pairs(read: Mapping[str, Any]) -> Tests | None:
    inputs, outputs, name = read["inputs"], read.get("outputs"), read.get("fn_name") or ""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not isinstance(name, str):
        return None
    if not inputs or len(inputs) != len(outputs) or (name and not name.isidentifier()):
        return None
    if not name:
        texts = [_joined(one) for one in (*inputs, *outputs)]
        if not all(isinstance(text, str) for text in texts):
            return None
        return Tests(tuple(texts[: len(inputs)]), tuple(texts[len(inputs) :]))
    try:
        arguments = [_arguments(one) for one in inputs]
        results = [json.loads(one) if isinstance(one, str) else one for one in outputs]
    except (ValueError, RecursionError):
        return None
    return Tests(tuple(arguments), tuple(results), name)


def _arguments(given: object) -> list[Any]:
    """Return a call's arguments: a list of them, or a text with one JSON value a line."""
    if isinstance(given, str):
        return [json.loads(line) for line in given.splitlines()]
    return list(given) if isinstance(given, list) else [given]


def _results(output: Any) -> list[Any]:
    """Return what a call may answer. APPS has some results alone in a list: 5 as [5]."""
    alone = output if isinstance(output, list) and len(output) == 1 else []
    return [[True, result] for result in (output, *alone)]


def _joined(text: object) -> object:
    """Return a list of lines, which APPS has in place of some texts, as one text."""
    is_lines = isinstance(text, list) and all(isinstance(line, str) for line in text)
    return "\n".join(text) if isinstance(text, list) and is_lines else text


def _shows(output: str, expected: str) -> bool:
    """Return whether an output is the expected one.

    Spaces at the ends of lines and empty lines at the end do not count. A number with a decimal
    point may differ by 1e-5 of itself, as in APPS' own tests.
    """
    found, wanted = _lines(output), _lines(expected)
    if found == wanted:
        return True
    pairs = [(a.split(), b.split()) for a, b in zip(found, wanted, strict=False)]
    return len(found) == len(wanted) and all(
        len(a) == len(b) and all(map(_same_word, a, b)) for a, b in pairs
    )


def _same_word(word: str, wanted: str) -> bool:
    are_decimal = "." in wanted and NUMBER.fullmatch(wanted) and NUMBER.fullmatch(word)
    if word == wanted or not are_decimal:
        return word == wanted
    return math.isclose(float(word), float(wanted), rel_tol=1e-5, abs_tol=1e-8)


def _lines(output: str) -> Sequence[str]:
    """Lines without spaces at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().split("\n")]
