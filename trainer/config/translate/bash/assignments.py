"""`NAME=value`, `NAME+=more`, arrays, and `export`, `declare`, `local` and `readonly`."""

from __future__ import annotations

import re

from contract.launch.command_lines import ASSIGNMENT
from trainer.config.translate.bash.arithmetic import NoNumberError, index_of
from trainer.config.translate.bash.scope import Scope
from trainer.config.translate.bash.state import ABSENT, Absent, Array, Unknown, Value
from trainer.config.translate.bash.syntax import Node
from trainer.config.translate.bash.words import Words

Status = int | None
STRANGE = frozenset("nlui")
"""Switches of `declare` that change what an assignment means."""


def assign(scope: Scope, node: Node, *, by_key: bool = False) -> None:
    """Make one assignment of the tree."""
    name, record = node["Name"]["Value"], scope.record
    outer, record.emptied = record.emptied, {}
    if node.get("Append"):
        record.emptied |= record.made_of.get(name, {})
    before = scope.value(name)
    if "Array" in node:
        scope.assign(name, _array(scope, node, before, by_key=by_key), node)
    elif "Index" in node:
        scope.assign(name, _with_element(scope, node, before), node)
    else:
        scope.assign(name, _scalar(scope, node, before), node)
    record.emptied.pop(name, None)  # as in PYTHONPATH=DIR:$PYTHONPATH
    if record.emptied:
        record.made_of[name] = record.emptied
    record.emptied = outer


def _scalar(scope: Scope, node: Node, before: Value | Absent) -> Value:
    text = Words(scope).text(node.get("Value"))
    if isinstance(before, Array):
        first: int | str = "0" if before.by_key else 0
        old = before.values.get(first, "") if node.get("Append") else ""
        return Array({**before.values, first: old + text}, before.by_key)
    if not node.get("Append") or before is None:
        return text
    if isinstance(before, Unknown):
        return before
    return (before if isinstance(before, str) else "") + text


def _array(scope: Scope, node: Node, before: Value | Absent, *, by_key: bool) -> Value:
    by_key = by_key or (isinstance(before, Array) and before.by_key)
    if node.get("Append") and isinstance(before, Unknown):
        return before
    values: dict[int | str, str] = {}
    if node.get("Append"):
        values = dict(_as_array(before).values)
    words = Words(scope)
    place = max((key for key in values if isinstance(key, int)), default=-1) + 1
    for element in node["Array"].get("Elems") or []:
        if "Index" in element:
            if not _is_indexed(scope.source.text, element):
                return Unknown.at(node, "a space stands between `]` and `=`")
            try:
                key = index_of(scope, words.text, element["Index"], Array(values, by_key))
            except NoNumberError as error:
                return Unknown.at(node, str(error) or "the index is not known")
            values[key] = words.text(element.get("Value"))
            place = key + 1 if isinstance(key, int) else place
            continue
        if by_key:
            return Unknown.at(node, "this form of an associative array is not read")
        for text in words.fields([element["Value"]]):
            values[place] = text
            place += 1
    if words.uncertain:
        return words.uncertain
    return Array(values, by_key)


def _is_indexed(text: bytes, element: Node) -> bool:
    """Return whether an element is `[index]=value`; the tree has `[index] = value` as one too."""
    found = re.compile(rb"\s*\]=").match(text, element["Index"]["End"]["Offset"])
    behind = element["Value"]["Pos"]["Offset"] if element.get("Value") else None
    return found is not None and behind in (None, found.end())


def _as_array(value: Value | Absent) -> Array:
    if isinstance(value, Array):
        return value
    return Array({0: value} if isinstance(value, str) else {})


def _with_element(scope: Scope, node: Node, before: Value | Absent) -> Value:
    if isinstance(before, Unknown):
        return before
    array = _as_array(before)
    words = Words(scope)
    try:
        key = index_of(scope, words.text, node["Index"], array)
    except NoNumberError as error:
        return Unknown.at(node, str(error) or "the index is not known")
    old = array.values.get(key, "") if node.get("Append") else ""
    return Array({**array.values, key: old + words.text(node.get("Value"))}, array.by_key)


def declare(scope: Scope, node: Node) -> Status:
    """Run `export`, `declare`, `local`, `readonly` or `typeset`."""
    variant, state = node["Variant"]["Value"], scope.state
    switches = ""
    for one in node.get("Args") or []:
        if "Name" not in one:
            for text in Words(scope).fields([one["Value"]]):
                if re.fullmatch(r"[-+][A-Za-z]+|--", text):
                    switches += text
                elif found := ASSIGNMENT.fullmatch(text):
                    _declared(scope, variant, switches, found[1])
                    scope.assign(found[1], found[2], one)
                elif text.isidentifier():
                    _declared(scope, variant, switches, text)
                else:
                    state.spoil(Unknown.at(node, f"`{variant} {scope.source.of(one)}` is not read"))
            continue
        name = one["Name"]["Value"]
        if variant == "local" and not state.saved:
            return 1
        if set(switches) & set("fFp"):
            continue
        before = scope.value(name)
        _declared(scope, variant, switches, name)
        if variant != "export" and STRANGE & set(switches):
            state.variables[name] = Unknown.at(node, f"`{variant} {switches}` is not read")
        elif one.get("Naked"):
            if "A" in switches or "a" in switches:
                kept = state.variables.get(name)
                state.variables[name] = (
                    kept if isinstance(kept, Array) else Array({}, "A" in switches)
                )
        else:
            _assign_declared(scope, one, name, before, by_key="A" in switches)
    return 0


def _assign_declared(
    scope: Scope, one: Node, name: str, before: Value | Absent, *, by_key: bool
) -> None:
    """Assign to a declared variable: `local X=$X` still reads the one that it hides."""
    hiding = scope.state.variables.get(name, ABSENT)
    if hiding is None and before is not ABSENT and not one.get("Append"):
        scope.state.variables[name] = before if not isinstance(before, Absent) else None
    elif hiding is None and before is ABSENT:
        scope.state.variables.pop(name, None)
    assign(scope, one, by_key=by_key)


def _declared(scope: Scope, variant: str, switches: str, name: str) -> None:
    state = scope.state
    if variant == "export" and "n" in switches:
        scope.record.exported.pop(name, None)
    elif variant == "export" or "x" in switches:
        scope.export(name)
    hides = variant == "local" or (variant in ("declare", "typeset") and "g" not in switches)
    if hides and state.saved and name not in state.saved[-1] and name not in state.given:
        state.saved[-1][name] = state.variables.get(name, ABSENT)
        state.variables[name] = None
