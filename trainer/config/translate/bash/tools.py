"""What small programs write with which scripts make texts of others: basename, tr and the like."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

from contract.launch.command_lines import PYTHON
from trainer.config.translate.bash.open_text import is_open, known_tail, opened

IMPORT = re.compile(r"import (\w+)")
"""A Python's whole program that tells whether it has a module."""
Output = str | None
"""None: this call is not read."""
SETS = {"[:upper:]": ascii_uppercase, "[:lower:]": ascii_lowercase, "[:digit:]": digits,
        "[:space:]": " \t\n\r\f\v", "\\n": "\n", "\\t": "\t", "\\\\": "\\"}  # fmt: skip


def output(words: list[str], source: str | None, directory: str) -> Output:
    """Return what a program writes, with `source` as its standard input."""
    rest = [word for word in words[1:] if word != "--"]
    if words[0] in ("realpath", "readlink"):
        return real_path(words[0], rest, directory)
    return TOOLS[words[0]](rest, source)


def probed(words: list[str], path: str) -> Output:
    """Return what a question about this machine writes, "" if the answer is no.

    It is whether there is a program, or whether a Python has a module. `path`: the script's PATH.
    """
    match words:
        case ["command", "-v", name] | ["which", name] if not is_open(name):
            found = shutil.which(name, path=path)
            return f"{found}\n" if found else ""
        case [python, "-c", text] if PYTHON.fullmatch(python) and (
            asked := IMPORT.fullmatch(text.strip())
        ):
            program = shutil.which(python, path=path)
            ask = f"import importlib.util as u, sys; sys.exit(not u.find_spec({asked[1]!r}))"
            if program is None or subprocess.run([program, "-c", ask], check=False).returncode:
                return ""
            return "\n"
    return None


def real_path(program: str, words: list[str], directory: str) -> Output:
    """Return the path of a file that is here, such as the script itself, without links."""
    paths = [word for word in words if word not in ("-f", "-e")]
    if len(paths) != 1 or not directory or (program == "readlink" and len(words) < 2):
        return None
    path = Path(directory, paths[0].replace(opened("{PWD}"), directory))
    return None if is_open(str(path)) or not path.exists() else f"{path.resolve()}\n"


def basename(words: list[str], source: str | None) -> Output:
    match words:
        case [path] | [path, _] if not path.startswith("-") and path:
            if is_open(path) and "/" not in known_tail(path).rstrip("/"):
                return None
            name = path.rstrip("/").rpartition("/")[2] or "/"
            suffix = words[1] if len(words) > 1 else ""
            return (name.removesuffix(suffix) if name != suffix else name) + "\n"
    return None


def dirname(words: list[str], source: str | None) -> Output:
    match words:
        case [path] if not path.startswith("-"):
            if is_open(path) and "/" not in known_tail(path).rstrip("/"):
                return None
            head, slash, _ = path.rstrip("/").rpartition("/")
            return (head.rstrip("/") or ("/" if slash or path[:1] == "/" else ".")) + "\n"
    return None


def seq(words: list[str], source: str | None) -> Output:
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d{1,6}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, by, last = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(
        len(numbers), (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    )
    if not by or any(re.match(r"-?0\d", word) for word in words):
        return None
    return "".join(f"{n}\n" for n in range(first, last + (1 if by > 0 else -1), by))


def cat(words: list[str], source: str | None) -> Output:
    return source if words in ([], ["-"]) else None


def tr(words: list[str], source: str | None) -> Output:
    match words:
        case ["-d", one] if source is not None and (chars := _set(one)):
            return "".join(char for char in source if char not in chars)
        case [one, other] if source is not None and not one.startswith("-"):
            chars, by = _set(one), _set(other)
            if chars and by:
                by += by[-1] * (len(chars) - len(by))
                return source.translate(str.maketrans(chars, by[: len(chars)]))
    return None


def _set(text: str) -> str:
    """Return the characters of a set of tr; "" if its form is not read."""
    made, rest = "", text
    while rest:
        named = next((name for name in SETS if rest.startswith(name)), "")
        if named:
            made, rest = made + SETS[named], rest.removeprefix(named)
        elif rest[0] in "[]\\":
            return ""
        elif len(rest) > 2 and rest[1] == "-":
            made += "".join(map(chr, range(ord(rest[0]), ord(rest[2]) + 1)))
            rest = rest[3:]
        else:
            made, rest = made + rest[0], rest[1:]
    return made


def cut(words: list[str], source: str | None) -> Output:
    found = re.fullmatch(r"-d\x00?(.)\x00-f\x00?(\d+)", "\0".join(words), re.DOTALL)
    if not found or source is None:
        return None
    sign, place = found[1], int(found[2])
    lines = source.removesuffix("\n").split("\n") if source else []
    cells = [line.split(sign) for line in lines]
    return "".join(
        (cell[0] if len(cell) == 1 else cell[place - 1] if place <= len(cell) else "") + "\n"
        for cell in cells
    )


TOOLS: Mapping[str, Callable[[list[str], str | None], Output]] = {
    "basename": basename,
    "dirname": dirname,
    "seq": seq,
    "cat": cat,
    "tr": tr,
    "cut": cut,
}
STREAMS = ("tr", "cut")
"""Programs that change each character: of an open text nobody knows the result."""


def reads(words: list[str], source: str | None) -> bool:
    """Return whether a program's words and input are known well enough to tell its output."""
    if words[0] in STREAMS:
        return not any(map(is_open, words)) and source is not None and not is_open(source)
    if words[0] in ("realpath", "readlink"):
        return True
    return words[0] in TOOLS and not (words[0] == "seq" and any(map(is_open, words)))
