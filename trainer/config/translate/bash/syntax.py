"""The syntax tree of a script, as shfmt prints it: that of Go's mvdan.cc/sh/v3/syntax, as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Node = dict[str, Any]
PROGRAM = "shfmt"
BYTES = "surrogateescape"
"""How a script's bytes that are no UTF-8 become text, and bytes again: bash takes any."""
FAULT = re.compile(r"(?m)^(?:<standard input>:)?(\d+):\d+: (.*)")
PLACEHOLDER = re.compile(r"(?<![<$&\w)])<([A-Za-z_](?:[\w./ -]*[\w.])?)>(?=[\s:/\"',;)]|$)")
"""`<address>` in a guide, which a shell would read as two redirections."""
SLIP = re.compile(r"(?<!\\)\\[ \t]+\n")
"""A backslash with spaces behind it: the line goes on all the same, as its writer meant."""
COMMENTED = re.compile(rb"\\\n(?=[ \t]*#)")
"""A backslash before a line of comment."""
META = " \t\n<>()[]|&;#"
"""Signs that end a word or begin another form."""
# To shfmt, a hidden sign is a letter; whoever takes a text from the tree shows it again.
HIDDEN = {ord(char): chr(0xE000 + ord(char)) for char in META + "{}=.,:/-+*?!%^@~"}
SHOWN = {ord(hidden): chr(char) for char, hidden in HIDDEN.items()}
ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(")
"""The beginning of an array's elements."""
SUBSCRIPT = re.compile(r"\$\{[!#]?[A-Za-z_]\w*\[(?![@*]\])|(?<![\w${!#.-])[A-Za-z_]\w*\[")
"""The beginning of `${NAME[key]…}` or of `NAME[key]=`."""
WHOLE = re.compile(
    r"""\\.|'[^']*'|"(?:\\.|[^"\\`]|`[^`]*`)*"|`[^`]*`|\$\(\([^()]*\)\)|\$\([^()]*\)|\$\{[^{}]*\}|\$\w+""",
    re.DOTALL,
)
"""Text that a bracket has with its quotes or as an expansion."""


class ScriptSyntaxError(ValueError):
    """Why a script cannot be read; the text begins with the line, if one is known."""

    def __init__(self, said: str, at: int = 0) -> None:
        super().__init__(f"line {at}: {said}" if at else said)
        self.line = at
        """The line that is at fault; 0: not known."""


@dataclass(frozen=True, slots=True)
class Source:
    """A script's text, and its tree."""

    text: bytes
    statements: list[Node]
    optional: frozenset[str] = frozenset()
    """Variables that the script does without on purpose: it asks for each by `${NAME:+…}`."""

    def of(self, node: Node) -> str:
        """Return a node's text."""
        text = self.text[node["Pos"]["Offset"] : node["End"]["Offset"]].decode(errors=BYTES)
        return text.translate(SHOWN)


def line(node: Node) -> int:
    return int(node["Pos"]["Line"])


def parsed(text: str) -> Source:
    """Return a script's tree. Raises ScriptSyntaxError."""
    text = text.replace("\r\n", "\n")
    text = SLIP.sub("\\\n", PLACEHOLDER.sub(lambda found: found[0].translate(HIDDEN), text))
    source = text.encode(errors=BYTES)
    try:
        statements = _tree(source)
    except ScriptSyntaxError:
        source, before = with_brackets_hidden(text).encode(errors=BYTES), source
        if source == before:
            raise
        statements = _tree(source)
    ended = _with_comments_ended(source, statements)
    tree = statements if ended == source else _tree(ended)
    return Source(ended, tree, frozenset(_asked_for(tree)))


def _asked_for(tree: list[Node]) -> Iterator[str]:
    for one in below(tree):
        if one.get("Type") == "ParamExp" and (one.get("Exp") or {}).get("Op") in (":+", "+"):
            yield str(one["Param"]["Value"])


def with_brackets_hidden(text: str) -> str:
    """Return a text with hidden signs in an array's elements, as in `([x,y] z)`, and in its keys.

    shfmt reads what stands in brackets as a sum; bash reads it as text.
    """
    hidden: set[int] = set()
    for found in ARRAY.finditer(text):
        hidden |= _of_array(text, found.end())
    for found in SUBSCRIPT.finditer(text):
        inner = _bracket(text, found.end() - 1)[1:-1]
        if found[0].startswith("$") or not any(text[place].isspace() for place in inner):
            hidden.update(inner)
    return "".join(
        char.translate(HIDDEN) if place in hidden else char for place, char in enumerate(text)
    )


def _of_array(text: str, at: int) -> set[int]:
    """Return the places of signs in brackets with which an array's elements begin."""
    hidden: set[int] = set()
    begins = True
    while at < len(text) and text[at] != ")":
        if begins and text[at] == "#":
            at += len(text[at:].partition("\n")[0])
        elif begins and text[at] == "[":
            places = _bracket(text, at)
            if not places:
                break
            at = places[-1] + 1
            is_key = text.startswith(("=", "+="), at)
            found = places[1:-1] if is_key else (one for one in places if text[one] in META)
            hidden.update(found)
            begins = False
        else:
            whole = WHOLE.match(text, at)
            begins = not whole and text[at].isspace()
            at = whole.end() if whole else at + 1
    return hidden


def _bracket(text: str, at: int) -> list[int]:
    """Return the places of signs from `[` to its `]`, but for quotes and expansions; [] if none."""
    places: list[int] = []
    depth = 0
    while at < len(text):
        if whole := WHOLE.match(text, at):
            at = whole.end()
            continue
        if text[at] in "$`'\"":
            return []
        places.append(at)
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        if not depth:
            return places
        at += 1
    return []


def slips(text: str) -> list[str]:
    """Return a sentence on each line at whose end spaces follow a backslash."""
    lines = (text.count("\n", 0, found.start()) + 1 for found in SLIP.finditer(text))
    ends = "spaces follow the backslash: bash ends the command there, and here it goes on"
    return [f"line {one}: {ends}" for one in lines]


def _with_comments_ended(source: bytes, statements: list[Node]) -> bytes:
    """Return a text without the backslashes before a comment and at its end.

    A comment ends a command for bash; shfmt goes on behind one between two such lines.
    """
    if not COMMENTED.search(source):
        return source
    made = bytearray(source)
    words = [(node["Pos"]["Offset"], node["End"]["Offset"]) for node in _leaves(statements)]
    for found in COMMENTED.finditer(source):
        if any(start <= found.start() < end for start, end in words):
            continue
        made[found.start()] = ord(" ")
        end = source.find(b"\n", found.end())
        if source[end - 1 : end] == b"\\":
            made[end - 1] = ord(" ")
    return bytes(made)


def _leaves(node: Any) -> Iterator[Node]:
    """Yield the nodes of text that have no others below them."""
    for one in below(node):
        inner = (other for other in below(list(one.values())) if "Pos" in other)
        if "Pos" in one and "Hash" not in one and next(inner, None) is None:
            yield one


def _tree(source: bytes) -> list[Node]:
    """Return the statements. Raises ScriptSyntaxError."""
    program = Path(sys.executable).with_name(PROGRAM)
    argv = [
        str(program if program.exists() else PROGRAM),
        "--language-dialect",
        "bash",
        "--to-json",
    ]
    try:
        done = subprocess.run(argv, input=source, capture_output=True, check=False)
    except FileNotFoundError:
        raise ScriptSyntaxError(f"{PROGRAM} is missing: run `pip install shfmt-py`") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace")
        found = FAULT.search(told)
        said, at = (found[2], int(found[1])) if found else (told.strip(), 0)
        raise ScriptSyntaxError(f"{said}: the script cannot be read", at)
    return json.loads(done.stdout).get("Stmts") or []


def below(node: Any) -> Iterator[Node]:
    """Yield a node and every node in it."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from below(value)
    elif isinstance(node, list):
        for value in node:
            yield from below(value)


def read_names(node: Any) -> list[str]:
    """Return the variables that a node reads, each once."""
    names: dict[str, None] = {}
    for one in below(node):
        if one.get("Type") == "ParamExp" and "Param" in one:
            names[one["Param"]["Value"]] = None
        elif one.get("Type") in ("ArithmExp", "ArithmCmd", "BinaryArithm", "UnaryArithm"):
            words = (one.get(key) for key in ("X", "Y"))
            for word in words:
                if word and word.get("Type") == "Word" and (text := literal(word)).isidentifier():
                    names[text] = None
    return list(names)


def literal(word: Node | None) -> str:
    """Return a word's text if it has neither quotes nor expansions; else ""."""
    parts = (word or {}).get("Parts") or []
    if any(part["Type"] != "Lit" or "\\" in part["Value"] for part in parts):
        return ""
    return "".join(part["Value"] for part in parts)
