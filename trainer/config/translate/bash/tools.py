"""What small programs write with which scripts make texts of others: basename, tr and the like."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from zoneinfo import ZoneInfo

from contract.launch.command_lines import PYTHON
from trainer.config.translate.bash.open_text import is_open, known_tail, opened

IMPORT = re.compile(r"import (\w+)")
"""A Python's whole program that tells whether it has a module."""
ANSWER_SECONDS = 10.0
QUESTIONS = {
    "nvidia-smi": re.compile(r"-L|--list-gpus|--query-gpu=[\w.,]+|--format=[\w,]+"),
    "hostname": re.compile(r"-[Iifs]"),
    "nproc": re.compile(r"(?!)"),
    "whoami": re.compile(r"(?!)"),
    "id": re.compile(r"-u|-un"),
    "uname": re.compile(r"-[nsm]"),
}
"""Programs that only ask the machine, and what their words may be."""
DATE = re.compile(r"\+(?:[^%]|%-?[CDFGHIMRSTUVWYdegjklmsuwy%])*")
"""A format of numbers alone."""
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
        case [name, *rest] if name in QUESTIONS and all(
            QUESTIONS[name].fullmatch(word) for word in rest
        ):
            return _asked(words, path)
        case [python, "-c", text] if PYTHON.fullmatch(python) and (
            asked := IMPORT.fullmatch(text.strip())
        ):
            program = shutil.which(python, path=path)
            ask = f"import importlib.util as u, sys; sys.exit(not u.find_spec({asked[1]!r}))"
            if program is None or subprocess.run([program, "-c", ask], check=False).returncode:
                return ""
            return "\n"
    return None


def is_away(name: str, path: str) -> bool:
    """Return whether this machine has no program of this name. `path`: the script's PATH."""
    return not is_open(name) and "/" not in name and shutil.which(name, path=path) is None


def _asked(words: list[str], path: str) -> str:
    """Return what this machine answers; "" without the program, or if it does not answer."""
    if (program := shutil.which(words[0], path=path)) is None:
        return ""
    try:
        done = subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return "" if done.returncode else done.stdout


def date(words: list[str], began: float, zone: str | None) -> Output:
    """Return what `date +FORMAT` writes at a time, in seconds of the epoch.

    Names of months and days are not read: they depend on the language. `zone`: TZ, or "".
    """
    rest = [word for word in words[1:] if word not in ("-u", "--utc", "--universal")]
    if len(rest) != 1 or not DATE.fullmatch(rest[0]) or zone is None:
        return None
    try:
        at = datetime.fromtimestamp(began, ZoneInfo(zone) if zone else UTC)
    except (OSError, ValueError):  # no such zone
        return None
    is_of_zone = bool(zone) and len(rest) == len(words) - 1
    at = at if is_of_zone else at.astimezone(UTC if len(rest) < len(words) - 1 else None)
    return at.strftime(rest[0][1:]) + "\n"


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


def wc(words: list[str], source: str | None) -> Output:
    return f"{source.count(chr(10))}\n" if words == ["-l"] and source is not None else None


def head(words: list[str], source: str | None) -> Output:
    found = re.fullmatch(r"-n?\x00?(\d+)", "\0".join(words or ["-10"]))
    if not found or source is None:
        return None
    return "".join(source.splitlines(keepends=True)[: int(found[1])])


AWK = re.compile(r"(?:/(?P<pattern>(?:[^/\\])*)/)? *\{ *print +\$(?P<place>\d+) *;? *\}")
"""A program of awk that writes the words at a place, of all lines or of those with a pattern."""
SAME_PATTERN = re.compile(r"(?:[\w\s:,=@%/-]|[\^$.|()*+?]|\[\^?[\w.-]+\])*")
"""Regular expressions that Python reads as POSIX's extended ones."""


def awk(words: list[str], source: str | None) -> Output:
    """Return the words of lines at a place, as `-F= '/^A/{print $1}'` writes them."""
    sign, rest = None, words
    if rest and re.fullmatch(r"-F.", rest[0]):
        sign, rest = rest[0][2], rest[1:]
    found = AWK.fullmatch(rest[0]) if len(rest) == 1 else None
    if not found or source is None or (pattern := _pattern(found["pattern"] or "")) is None:
        return None
    place = int(found["place"])
    lines = [line for line in source.splitlines() if pattern.search(line)]
    cells = [line.split(sign) if place else [line] for line in lines]
    at = max(place - 1, 0)
    return "".join(f"{one[at] if at < len(one) else ''}\n" for one in cells)


def grep(words: list[str], source: str | None) -> Output:
    """Return the lines with a pattern; "" if there are none, or with -q, which has no output."""
    options = [word for word in words if re.fullmatch(r"-[qEvi]+", word)]
    rest = [word for word in words if word not in options]
    flags = "".join(options).replace("-", "")
    if len(rest) != 1 or source is None or rest[0][:1] == "-":
        return None
    extended = "E" in flags or not re.search(r"[|()+?{}\\]", rest[0])
    pattern = _pattern(rest[0], re.IGNORECASE if "i" in flags else re.NOFLAG)
    if pattern is None or not extended:
        return None
    lines = [one for one in source.splitlines() if bool(pattern.search(one)) != ("v" in flags)]
    return "".join(f"{one}\n" for one in lines)


def _pattern(text: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str] | None:
    """Return a regular expression of POSIX; None if Python may read it otherwise."""
    try:
        return re.compile(text, flags) if SAME_PATTERN.fullmatch(text) else None
    except re.error:
        return None


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
    "wc": wc,
    "head": head,
    "awk": awk,
    "grep": grep,
}
STREAMS = ("tr", "cut", "wc", "head", "awk", "grep")
"""Programs that change each character: of an open text nobody knows the result."""


def reads(words: list[str], source: str | None) -> bool:
    """Return whether a program's words and input are known well enough to tell its output."""
    if words[0] in STREAMS:
        return not any(map(is_open, words)) and source is not None and not is_open(source)
    if words[0] in ("realpath", "readlink"):
        return True
    return words[0] in TOOLS and not (words[0] == "seq" and any(map(is_open, words)))
