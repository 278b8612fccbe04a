"""Runs a script's statements on its state alone: no program starts (bash(1), "SHELL GRAMMAR").

Where only a run of the script tells a condition, both branches are followed, and what they set
differently is unknown. A form that is not read makes unknown what it could set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trainer.config.translate.bash import assignments, builtins, conditions, redirects
from trainer.config.translate.bash.arithmetic import NoNumberError, Sum
from trainer.config.translate.bash.calls import Calls
from trainer.config.translate.bash.flow import EXIT, NEXT, Flow, Step
from trainer.config.translate.bash.loops import Loops
from trainer.config.translate.bash.open_text import is_open, names_in, pieces
from trainer.config.translate.bash.scope import Place, Record, Scope, UnboundError
from trainer.config.translate.bash.state import ABSENT, Absent, State, Unknown, joined
from trainer.config.translate.bash.syntax import (
    Node,
    Source,
    below,
    line,
    literal,
    read_names,
)
from trainer.config.translate.bash.words import Words

CONTINUED = "lines that begin with a flag are taken as a part of the command above"
LONGEST = 60
MOST_SAID = 3
"""Texts that are shown of what a script says before it ends."""
SIMPLE = frozenset(
    ["CallExpr", "BinaryCmd", "Subshell", "TestClause", "ArithmCmd", "LetClause", "DeclClause"]
)
"""Commands whose failure ends a script with `set -e`."""
SIGNS = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^")
ASSIGNS = frozenset(["=", "++", "--", *(f"{sign}=" for sign in SIGNS)])
ANYTHING: Node = {"Parts": [{"Type": "Lit", "Value": "*"}]}


class Run:
    """Goes through statements."""

    def __init__(self, source: Source, record: Record, place: Place) -> None:
        self.source, self.record, self.place = source, record, place
        self.loops = 0
        self._calls, self._loop = Calls(self), Loops(self)

    def script(self, state: State) -> None:
        """Run the whole script."""
        flow = self.each(self.source.statements, state)
        failed = flow == EXIT and state.status not in (0, None)
        self.record.fails = failed and not self.record.sets_up

    def scope(self, state: State) -> Scope:
        return Scope(state, self.source, self.record, self.place, self._calls.output_of)

    def each(self, statements: Sequence[Node], state: State, *, checked: bool = False) -> Flow:
        """Run statements; `checked`: a failure does not end a script with `set -e`."""
        ways: set[Step] = set()
        before: Node | None = None
        for place, statement in enumerate(statements):
            if not self._continues(before, statement, state):
                flow = self.statement(statement, state, checked=checked)
                if Step.NEXT not in flow:
                    return frozenset(ways | flow)
                if flow != NEXT:
                    ways |= flow - NEXT
                    after = state.copy()
                    rest = self.each(statements[place + 1 :], after, checked=checked)
                    why = self.unknown(statement, "it depends on whether the lines are reached")
                    state.become(joined(state, after, why) if rest != EXIT else state)
                    return frozenset(ways | (rest if rest != EXIT else NEXT))
            before = statement
        return frozenset(ways | NEXT)

    def _continues(self, before: Node | None, statement: Node, state: State) -> bool:
        """Take a line that begins with a flag as a part of the command above, as in guides."""
        call, last = statement.get("Cmd") or {}, (before or {}).get("Cmd") or {}
        if call.get("Type") != "CallExpr" or last.get("Type") != "CallExpr" or before is None:
            return False
        first = literal((call.get("Args") or [None])[0])
        flags = first.startswith("--") or bool(re.match(r"[+~]*[a-z_]+(\.\w+)+=", first))
        gap = line(statement) - before["End"]["Line"]
        if not flags or not self.record.commands or not last.get("Args"):
            return False
        whole = before["Pos"]["Line"] == before["End"]["Line"]  # with backslashes, one is missing
        if gap != 1 or not whole or not first.startswith("--"):
            self.record.notes.append(
                f"line {line(statement)}: {first} is no part of the command above: a comment or a "
                "missing backslash ends it, in bash too"
            )
            return False
        self.record.commands[-1] += Words(self.scope(state)).fields(call["Args"])
        if CONTINUED not in self.record.notes:
            self.record.notes.append(CONTINUED)
        return True

    def statement(self, statement: Node, state: State, *, checked: bool) -> Flow:
        command = statement.get("Cmd")
        if statement.get("Background") or statement.get("Coprocess"):
            self._apart([{**statement, "Background": False, "Coprocess": False}], state)
            state.status = 0
            return NEXT
        kept, source = state.output, state.source
        kind = command["Type"] if command else ""
        quiet = checked or bool(statement.get("Negated"))
        try:
            hidden = redirects.taken_over(statement, self.scope(state))
            flow = self._command(command, state, checked=quiet) if command else NEXT
        except UnboundError as error:
            self.record.unbound = self.record.unbound or str(error)
            return self.ended(statement)
        if hidden:
            state.output = kept
        if redirects.is_fed(statement):
            state.source = source
        if statement.get("Negated") and state.status is not None:
            state.status = int(not state.status)
        listed = command is not None and kind == "BinaryCmd" and command["Op"] in ("&&", "||")
        ends = "errexit" in state.options and not (quiet or listed)
        failed = flow == NEXT and state.status not in (0, None)
        if ends and failed and (not kind or kind in SIMPLE):
            return self.ended(statement)
        return flow

    def ended(self, node: Node) -> Flow:
        if not self.record.ended:
            self.record.ended = line(node)
            self.record.last_words = "".join(self.record.said[-MOST_SAID:])
        return EXIT

    def _command(self, node: Node, state: State, *, checked: bool) -> Flow:
        match node["Type"]:
            case "CallExpr":
                return self._calls.call(node, state, checked=checked)
            case "BinaryCmd" if node["Op"] in ("|", "|&"):
                return self._pipe(node, state)
            case "BinaryCmd":
                return self._either(node, state, checked=checked)
            case "IfClause":
                return self._if(node, state, checked=checked)
            case "CaseClause":
                return self._case(node, state, checked=checked)
            case "WhileClause" | "ForClause":
                loop = self._loop.while_ if node["Type"] == "WhileClause" else self._loop.for_
                self.loops += 1
                flow = loop(node, state, checked=checked)
                self.loops -= 1
                return flow
            case "Block":
                return self.each(node["Stmts"], state, checked=checked)
            case "Subshell":
                self._apart(node["Stmts"], state, checked=checked)
            case "FuncDecl":
                state.functions[node["Name"]["Value"]] = node["Body"]
                state.status = 0
            case "TimeClause":
                return (
                    self.statement(node["Stmt"], state, checked=checked) if "Stmt" in node else NEXT
                )
            case "TestClause":
                state.status = self._double(node, state)
            case "ArithmCmd":
                state.status = self.sums([node["X"]], state)
            case "LetClause":
                state.status = self.sums(node["Exprs"], state)
            case "DeclClause":
                state.status = assignments.declare(self.scope(state), node)
            case _:
                state.spoil(Unknown.at(node, f"`{self.shown(node)}` is not read"))
        return NEXT

    def _apart(self, statements: Sequence[Node], state: State, *, checked: bool = False) -> None:
        """Run statements in a shell of their own, which leaves its exit code and its output."""
        inner, ended = state.copy(), self.record.ended
        self.each(statements, inner, checked=checked)
        self.record.ended = ended
        state.status, state.output = inner.status, inner.output

    def _double(self, node: Node, state: State) -> int | None:
        if any(one.get("Op") == "=~" for one in below(node)):
            state.variables["BASH_REMATCH"] = Unknown("what a regular expression found is not read")
        try:
            return builtins.status_of(conditions.of_tree(node["X"], self.scope(state)))
        except conditions.InvalidTestError:
            return 2

    def sums(self, nodes: Sequence[Node], state: State) -> int | None:
        scope = self.scope(state)
        try:
            values = [Sum(scope, Words(scope).text).value(node) for node in nodes]
        except NoNumberError as error:
            for node in below(nodes):
                if node.get("Op") in ASSIGNS and (name := literal(node.get("X"))).isidentifier():
                    why = str(error) or "the sum is known only when the script runs"
                    scope.assign(name, Unknown.at(node, why), node)
            return None
        return int(not values[-1])

    # Conditions

    def unknown(self, node: Node, what: str) -> Unknown:
        return Unknown.at(node, what)

    def shown(self, node: Node) -> str:
        """Return a node's text in short."""
        return short([self.source.of(node)])

    def _reason(self, nodes: Sequence[Node], state: State) -> Unknown:
        """Return why a condition is unknown, and which variables from outside would tell it."""
        ask: dict[str, None] = {}
        for name in read_names(nodes):
            value = self.scope(state).value(name)
            if isinstance(value, Unknown):
                ask |= dict.fromkeys(value.ask or ([name] if name.isidentifier() else []))
            elif value is ABSENT and name.isidentifier():
                ask[name] = None
            elif isinstance(value, str) and is_open(value):
                names = (name for one in pieces(value) if is_open(one) for name in names_in(one))
                ask |= dict.fromkeys(
                    one for one in names if one.isidentifier() and self.scope(state).is_outside(one)
                )
        asked = short(map(self.source.of, nodes))
        unknown = self.unknown(nodes[0], f"it depends on `{asked}`, which only a run tells")
        return replace(unknown, ask=tuple(ask))

    def _branch(
        self,
        asked: list[Node],
        state: State,
        then: Callable[[State], Flow],
        other: Callable[[State], Flow],
    ) -> Flow:
        """Follow both branches of a condition that is unknown."""
        why, scope = self._reason(asked, state), self.scope(state)
        name, empty_first = conditions.default_of(asked)
        outside = name.isidentifier() and scope.is_outside(name) and not state.spoilt
        one, two = state.copy(), state.copy()
        if outside:
            (one if empty_first else two).variables[name] = None
        ended = self.record.ended
        flows = then(one), other(two)
        if outside:
            for side in (one, two):
                if side.variables.get(name, ABSENT) is None:
                    side.variables.pop(name)
        if EXIT in flows and flows != (EXIT, EXIT):
            self.record.ended = ended
            state.become(two if flows[0] == EXIT else one)
            return flows[1] if flows[0] == EXIT else flows[0]
        both = joined(one, two, why)
        if outside:
            kept = (one if empty_first else two).variables.get(name, ABSENT)
            if isinstance(kept, Absent):
                both.variables.pop(name, None)
            else:
                both.variables[name] = kept
        state.become(both)
        ways = flows[0] | flows[1]
        return ways - EXIT if ways != EXIT else ways

    def _if(self, node: Node, state: State, *, checked: bool) -> Flow:
        if not node.get("Cond"):
            return self.each(node["Then"], state, checked=checked)
        flow = self.each(node["Cond"], state, checked=True)
        if flow != NEXT:
            return flow

        def then(inner: State) -> Flow:
            return self.each(node["Then"], inner, checked=checked)

        def other(inner: State) -> Flow:
            if "Else" in node:
                return self._if(node["Else"], inner, checked=checked)
            inner.status = 0
            return NEXT

        if state.status is None:
            return self._branch(node["Cond"], state, then, other)
        return other(state) if state.status else then(state)

    def _either(self, node: Node, state: State, *, checked: bool) -> Flow:
        """Run `a && b` or `a || b`."""
        flow = self.statement(node["X"], state, checked=True)
        if flow != NEXT:
            return flow
        wanted = node["Op"] == "&&"
        left = state.status

        def right(inner: State) -> Flow:
            return self.statement(node["Y"], inner, checked=checked)

        if left is not None:
            return right(state) if (left == 0) == wanted else NEXT
        status: list[int | None] = []

        def noted(inner: State) -> Flow:
            flow = right(inner)
            status.append(inner.status)
            return flow

        def skipped(inner: State) -> Flow:
            return NEXT

        first, second = (noted, skipped) if wanted else (skipped, noted)
        flow = self._branch([node["X"]], state, first, second)
        certain = status[0] is not None and (status[0] == 0) != wanted
        if len(flow) == 1 and Step.NEXT in flow:
            state.status = status[0] if certain else None
        return flow

    def _case(self, node: Node, state: State, *, checked: bool) -> Flow:
        state.status = 0
        text = Words(self.scope(state)).text(node["Word"])
        return self._items(node, 0, text, state, checked=checked)

    def _items(self, node: Node, at: int, text: str, state: State, *, checked: bool) -> Flow:
        items = node.get("Items") or []
        if at >= len(items):
            return NEXT
        item, words = items[at], Words(self.scope(state))
        found: conditions.Answer = False
        for pattern in item["Patterns"]:
            found = conditions.either(found, conditions.matched(text, words.field(pattern)))

        def taken(inner: State) -> Flow:
            flow = self.each(item.get("Stmts") or [], inner, checked=checked)
            if item["Op"] == ";;" or flow != NEXT:
                return flow
            if item["Op"] == ";&" and at + 1 < len(items):
                next_ = {**items[at + 1], "Patterns": [ANYTHING]}
                rest_ = {**node, "Items": [*items[: at + 1], next_, *items[at + 2 :]]}
                return self._items(rest_, at + 1, text, inner, checked=checked)
            return self._items(node, at + 1, text, inner, checked=checked)

        def rest(inner: State) -> Flow:
            return self._items(node, at + 1, text, inner, checked=checked)

        if found is None:
            return self._branch([node["Word"]], state, taken, rest)
        return taken(state) if found else rest(state)

    # Commands

    def _pipe(self, node: Node, state: State) -> Flow:
        left, said = state.copy(), len(self.record.said)
        left.output = ()
        self.each([node["X"]], left, checked=True)
        del self.record.said[said:]
        right = state.copy()
        right.source = left.output if isinstance(left.output, Unknown) else "".join(left.output)
        if node["Op"] == "|&":
            right.source = Unknown("it is read from a command")
        self.each([node["Y"]], right, checked=True)
        state.status, state.output = right.status, right.output
        if "pipefail" in state.options and state.status == 0:
            state.status = left.status
        return NEXT


def short(texts: Iterable[str]) -> str:
    """Return texts on one line, cut where they are long."""
    text = " ".join(" ".join(one.split()) for one in texts).rstrip(";")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
