"""Redirections: what a command reads, and whether anybody here reads what it writes."""

from __future__ import annotations

import re

from trainer.config.translate.bash.scope import Scope
from trainer.config.translate.bash.state import Unknown
from trainer.config.translate.bash.syntax import Node
from trainer.config.translate.bash.words import Words

INPUTS = ("<", "<<", "<<-", "<<<", "<>")


def is_fed(statement: Node) -> bool:
    """Return whether a statement has an input of its own."""
    return any(one["Op"] in INPUTS for one in statement.get("Redirs") or [])


def taken_over(statement: Node, scope: Scope) -> bool:
    """Take over the input of a statement; return whether nobody here reads its output."""
    words, state, hidden = Words(scope), scope.state, False
    for one in statement.get("Redirs") or []:
        operator, number = one["Op"], (one.get("N") or {}).get("Value", "")
        if operator == "<<<":
            state.source = words.text(one["Word"]) + "\n"
        elif operator in ("<<", "<<-"):
            state.source = _document(one, words)
        elif operator in ("<", "<>") and number in ("", "0"):
            state.source = Unknown("it is read from a file or a command")
        elif operator.startswith((">", "&>")):
            if operator not in (">&", ">&-"):
                scope.record.written.append(words.text(one["Word"]))
            hidden |= number in ("", "1")
    return hidden


def _document(one: Node, words: Words) -> str:
    quoted = any(part["Type"] != "Lit" or "\\" in part["Value"] for part in one["Word"]["Parts"])
    body = one.get("Hdoc") or {}
    tabs = one["Op"] == "<<-"
    if quoted:
        text = "".join(part.get("Value", "") for part in body.get("Parts") or [])
        return re.sub(r"(?m)^\t+", "", text) if tabs else text
    if tabs:
        first = True
        parts = []
        for part in body.get("Parts") or []:
            if part["Type"] == "Lit":
                begins = r"(?m)^\t+" if first or part["Pos"]["Col"] == 1 else r"(?<=\n)\t+"
                part = {**part, "Value": re.sub(begins, "", part["Value"])}
            parts.append(part)
            first = False
        body = {**body, "Parts": parts}
    return words.document(body)
