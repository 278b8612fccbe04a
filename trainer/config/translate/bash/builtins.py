"""Commands of bash that change its state or write text (bash(1), "SHELL BUILTIN COMMANDS")."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from trainer.config.translate.bash import conditions
from trainer.config.translate.bash.open_text import hide, is_open, opened, separators_of, show
from trainer.config.translate.bash.scope import Scope, text_of
from trainer.config.translate.bash.state import Array, Unknown, Value
from trainer.config.translate.bash.syntax import Node, line

Status = int | None
"""The exit code; None: only a run tells it."""
OPTIONS = {"e": "errexit", "f": "noglob", "a": "allexport", "u": "nounset"}
SIMPLE_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
IDLE = frozenset([
    "alias", "bg", "bind", "complete", "compopt", "disown", "enable", "fg", "hash", "history",
    "jobs", "trap", "ulimit", "umask", "unalias", "wait", "times", ":", "true",
])  # fmt: skip
"""Builtins that change nothing that is read here, and succeed."""
SPOILING_SWITCHES = frozenset([
    "nocasematch", "nocaseglob", "lastpipe", "nullglob", "failglob", "dotglob",
])  # fmt: skip


def write(scope: Scope, text: str | Unknown) -> None:
    """Add to what is read by `$(…)` or a pipe."""
    state = scope.state
    if isinstance(text, str):
        scope.record.said.append(text)
    if isinstance(text, Unknown) or isinstance(state.output, Unknown):
        state.output = text if isinstance(text, Unknown) else state.output
    else:
        state.output = (*state.output, text)


def test(scope: Scope, words: list[str], node: Node) -> Status:
    inner = words[1:]
    if words[0] == "[":
        if inner[-1:] != ["]"]:
            return 2
        inner = inner[:-1]
    try:
        return status_of(conditions.of_words(inner, scope))
    except conditions.InvalidTestError:
        return 2


def status_of(answer: conditions.Answer) -> Status:
    return None if answer is None else int(not answer)


def echo(scope: Scope, words: list[str], node: Node) -> Status:
    rest, options = words[1:], ""
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        options += rest.pop(0)[1:]
    text = " ".join(rest) + ("" if "n" in options else "\n")
    if "e" in options and "\\" in text:
        write(scope, Unknown("`echo -e` with escapes is not read"))
    else:
        write(scope, text)
    return 0


def printf(scope: Scope, words: list[str], node: Node) -> Status:
    name, rest = "", words[1:]
    if rest[:1] == ["-v"] and len(rest) > 1:
        name, rest = rest[1], rest[2:]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    text = _formatted(rest[0], rest[1:]) if rest else None
    found = Unknown.at(node, "this `printf` is not read") if text is None else text
    if name.isidentifier():
        scope.state.variables[name] = found
    elif not name:
        write(scope, found)
    return 0


def _formatted(form: str, values: list[str]) -> str | None:
    tokens = re.findall(r"%0?\d*[sd]|%%|\\[nt\\]|[^%\\]+|[%\\]", form)
    if any(token in ("%", "\\") for token in tokens) or is_open(form):
        return None
    places = sum(token[0] == "%" and token[-1] in "sd" for token in tokens)
    made, rest = [], list(values)
    while True:
        for token in tokens:
            if token[0] == "%" and token[-1] in "sd":
                value = rest.pop(0) if rest else ("" if token[-1] == "s" else "0")
                number = re.fullmatch(r"-?(0|[1-9]\d*)", value)
                if (token[-1] == "d" and not number) or (token[1:-1] and is_open(value)):
                    return None
                made.append(token % (int(value) if token[-1] == "d" else value))
            else:
                made.append("%" if token == "%%" else SIMPLE_ESCAPES.get(token, token))
        if not rest or not places:
            return "".join(made)


def pwd(scope: Scope, words: list[str], node: Node) -> Status:
    directory = scope.state.directory
    text = directory if isinstance(directory, Unknown) else (directory or opened("{PWD}")) + "\n"
    write(scope, text if len(words) == 1 else Unknown("the directory is known only to bash"))
    return 0


def cd(scope: Scope, words: list[str], node: Node) -> Status:
    """Change the directory, which is taken to exist."""
    rest = [word for word in words[1:] if word not in ("--", "-L")]
    to = rest[0] if rest else text_of(scope.value("HOME")) or opened("{HOME}")
    now = scope.state.directory
    lost = Unknown(f"line {line(node)} changes the directory", has_line=True)
    if len(rest) > 1 or to.startswith("-") or isinstance(now, Unknown):
        scope.state.directory = lost
    else:
        rooted = to.startswith(("/", opened("{PWD}"), opened("{HOME}")))
        whole = to if rooted else f"{now or opened('{PWD}')}/{to}"
        found = _normal(whole) or _normal(whole.replace(opened("{PWD}"), scope.place.directory))
        scope.state.directory = found if found and (rooted or not is_open(to)) else lost
    return 0


def _normal(path: str) -> str:
    """Return the path without `.` and `..`; "" if `..` leaves an open piece."""
    shown, kept = hide(path)
    for found in re.finditer(r"[^/]+", shown):
        if found[0] == ".." and kept:
            before = posixpath.normpath(shown[: found.start()])
            if any(ord(char) >= 0xE100 for char in posixpath.basename(before)):
                return ""
    return show(posixpath.normpath(shown), kept)


def set_(scope: Scope, words: list[str], node: Node) -> Status:
    state, rest = scope.state, words[1:]
    options = set(state.options)
    while rest and re.fullmatch(r"[-+][A-Za-z]+", rest[0]):
        word, rest = rest[0], rest[1:]
        for char in word[1:]:
            name = OPTIONS.get(char, char)
            if char == "o":
                name, rest = (rest[0] if rest else ""), rest[1:]
            (options.add if word[0] == "-" else options.discard)(name)
    state.options = frozenset(options)
    if rest[:1] == ["--"]:
        state.arguments = tuple(rest[1:])
    elif rest and rest[0] not in ("-", "+"):
        state.arguments = tuple(rest)
    return 0


def shift(scope: Scope, words: list[str], node: Node) -> Status:
    state = scope.state
    count = words[1] if len(words) > 1 else "1"
    if isinstance(state.arguments, Unknown):
        return None
    if not count.isdecimal():
        state.arguments = Unknown(
            f"line {line(node)} shifts the arguments by `{count}`", has_line=True
        )
        return None
    if int(count) > len(state.arguments):
        return 1
    state.arguments = state.arguments[int(count) :]
    return 0


def unset(scope: Scope, words: list[str], node: Node) -> Status:
    for word in words[1:]:
        if "-f" in words[1:2]:
            scope.state.functions.pop(word, None)
        elif word.isidentifier():
            scope.assign(word, None, node)
        elif (name := word.partition("[")[0]).isidentifier():
            scope.state.variables[name] = Unknown(
                f"line {line(node)} unsets a part of {name}", has_line=True
            )
    return 0


def read(scope: Scope, words: list[str], node: Node) -> Status:
    """Read a line, or with -d '' the whole input, into variables."""
    raw, whole, array, rest = False, False, "", words[1:]
    unread = ""
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word, rest = rest[0], rest[1:]
        for place, char in enumerate(word[1:], 1):
            if char == "r":
                raw = True
            elif char in "sep" and char != "p":
                continue
            else:
                value = word[place + 1 :]
                if not value:
                    value, rest = (rest[0] if rest else ""), rest[1:]
                whole |= char == "d" and value == ""
                array = value if char == "a" else array
                if char not in "adpt" or (char == "d" and value not in ("", "\n")):
                    unread = char
                break
    names = [array] if array else rest or ["REPLY"]
    source = scope.state.source
    if isinstance(source, Unknown) or (is_open(source) and (not whole or len(names) > 1)) or unread:
        why = source if isinstance(source, Unknown) else Unknown("its input is not known")
        for name in names:
            _set(scope, name, Unknown.at(node, why.why), node)
        scope.state.source = why
        return None
    text, scope.state.source = (source, "") if whole else _first_line(source, raw=raw)
    ended = whole or not source.partition("\n")[1]
    if not raw:
        text = re.sub(r"\\(\n|.)", lambda found: "" if found[1] == "\n" else found[1], text)
    separators = text_of(scope.value("IFS"))
    cells = _cells(text, " \t\n" if separators is None else separators, 0 if array else len(names))
    if array:
        _set(scope, array, Array(dict(enumerate(cells))), node)
    for place, name in enumerate([] if array else names):
        _set(scope, name, cells[place] if place < len(cells) else "", node)
    return int(ended)


def _first_line(source: str, *, raw: bool) -> tuple[str, str]:
    first, newline, rest = source.partition("\n")
    while not raw and newline and re.search(r"(?<!\\)(\\\\)*\\$", first):
        more, newline, rest = rest.partition("\n")
        first = f"{first[:-1]}{more}"
    return first, rest


def _set(scope: Scope, name: str, value: Value, node: Node) -> None:
    if name.isidentifier():
        scope.assign(name, value, node)


def _cells(text: str, separators: str, most: int) -> list[str]:
    """Return what `read` puts into `most` variables, the rest into the last; 0: into an array."""
    shown, kept = hide(text)
    spaces, others, sign = separators_of(separators)
    body = shown.strip(spaces) if spaces else shown
    found = [body] if most == 1 else re.split(sign, body, maxsplit=max(most - 1, 0))
    if not most and len(found) > 1 and not found[-1]:
        found.pop()
    if most and others and re.fullmatch(f"[^{re.escape(others)}]*[{re.escape(others)}]", found[-1]):
        found[-1] = found[-1][:-1]
    return [show(one, kept) for one in found] if body or most else []


def mapfile(scope: Scope, words: list[str], node: Node) -> Status:
    source = scope.state.source
    name = words[-1] if len(words) > 1 and words[-1].isidentifier() else "MAPFILE"
    if words[1:-1] not in ([], ["-t"]) or isinstance(source, Unknown) or is_open(source):
        _set(
            scope,
            name,
            Unknown(f"line {line(node)} reads it from a command or a file", has_line=True),
            node,
        )
        return 0
    lines = source.removesuffix("\n").split("\n") if source else []
    end = "" if "-t" in words else "\n"
    _set(scope, name, Array({place: one + end for place, one in enumerate(lines)}), node)
    return 0


def getopts(scope: Scope, words: list[str], node: Node) -> Status:
    if scope.state.arguments == () and len(words) == 3:
        if words[2].isidentifier():
            scope.state.variables[words[2]] = "?"
        return 1
    scope.state.spoil(Unknown.at(node, "`getopts` is not read"))
    return None


def shopt(scope: Scope, words: list[str], node: Node) -> Status:
    if SPOILING_SWITCHES & {*words}:
        scope.state.spoil(Unknown.at(node, f"`{' '.join(words)}` is not read"))
    return 0


BUILTINS: Mapping[str, Callable[[Scope, list[str], Node], Status]] = {
    "[": test,
    "test": test,
    "echo": echo,
    "printf": printf,
    "pwd": pwd,
    "cd": cd,
    "set": set_,
    "shift": shift,
    "unset": unset,
    "read": read,
    "mapfile": mapfile,
    "readarray": mapfile,
    "getopts": getopts,
    "shopt": shopt,
    "false": lambda scope, words, node: 1,
    **{name: lambda scope, words, node: 0 for name in IDLE},
}
