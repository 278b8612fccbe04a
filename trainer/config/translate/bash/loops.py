"""`while`, `until`, `for` and `select` (bash(1), "Looping Constructs")."""

from __future__ import annotations

from collections.abc import Callable

from trainer.config.translate.bash.flow import BREAK, EXIT, MOST_ROUNDS, NEXT, Flow, Runner, Step
from trainer.config.translate.bash.open_text import is_open, pieces
from trainer.config.translate.bash.state import State, Unknown, joined
from trainer.config.translate.bash.syntax import Node
from trainer.config.translate.bash.words import Words


class Loops:
    """Runs loops round by round; one whose number of rounds is unknown leaves what is certain."""

    def __init__(self, run: Runner) -> None:
        self._run = run

    def while_(self, node: Node, state: State, *, checked: bool) -> Flow:
        inner = [*node["Cond"], *node["Do"]]
        for _ in range(MOST_ROUNDS):
            unsure = self._unsure(node, inner, state)
            before = state.copy()
            if self._run.each(node["Cond"], state, checked=True) != NEXT or state.status is None:
                return unsure()
            if (state.status == 0) == bool(node.get("Until")):
                state.status = 0
                return NEXT
            flow = self._round(node, state, unsure, checked=checked)
            if flow is not None:
                return flow
            if state == before:
                break
        return self._many(node, inner, state)

    def for_(self, node: Node, state: State, *, checked: bool) -> Flow:
        loop = node["Loop"]
        if loop["Type"] == "CStyleLoop":
            return self._counted(node, loop, state, checked=checked)
        name, scope = loop["Name"]["Value"], self._run.scope(state)
        if node.get("Select"):
            return self._with(name, "`select` asks for it", node, state)
        words = Words(scope)
        if "Items" in loop:
            values = words.fields(loop["Items"])
        elif isinstance(state.arguments, Unknown):
            values = [scope.ask("1", state.arguments)]
        else:
            values = list(state.arguments)
        if words.uncertain or any(value and all(map(is_open, pieces(value))) for value in values):
            why = f"`{self._run.shown(loop)}` is known only when the script runs"
            return self._with(name, why, node, state)
        if len(values) > MOST_ROUNDS:
            return self._with(name, "the loop has too many rounds", node, state)
        state.status = 0
        for value in values:
            scope.assign(name, value, {})
            unsure = self._unsure(node, node["Do"], state, name)
            flow = self._round(node, state, unsure, checked=checked)
            if flow is not None:
                return flow
        return NEXT

    def _counted(self, node: Node, loop: Node, state: State, *, checked: bool) -> Flow:
        def sums(key: str) -> int | None:
            return self._run.sums([loop[key]], state) if key in loop else 0

        step = {"Type": "ArithmCmd", "X": loop.get("Post"), "Pos": node["Pos"], "End": node["End"]}
        post = [{"Cmd": step, "Pos": node["Pos"], "End": node["End"]}] if "Post" in loop else []
        inner = [*node["Do"], *post]
        sums("Init")
        for _ in range(MOST_ROUNDS):
            status = sums("Cond")
            if status is None:
                break
            if status:
                return NEXT
            unsure = self._unsure(node, inner, state)
            flow = self._round(node, state, unsure, checked=checked)
            if flow is not None:
                return flow
            sums("Post")
        return self._many(node, inner, state)

    def _round(
        self, node: Node, state: State, unsure: Callable[[], Flow], *, checked: bool
    ) -> Flow | None:
        """Run a round; return how it goes on behind the loop, None if with another round."""
        flow = self._run.each(node["Do"], state, checked=checked)
        if flow == BREAK or state.leaving:
            return self._left(flow, state)
        if flow <= {Step.NEXT, Step.CONTINUE}:
            return None
        return flow if len(flow) == 1 else unsure()

    def _unsure(
        self, node: Node, statements: list[Node], state: State, name: str = ""
    ) -> Callable[[], Flow]:
        """Return what runs the loop from here on if nobody can count its rounds."""
        before, commands = state.copy(), len(self._run.record.commands)

        def run() -> Flow:
            self._run.record.cut(commands)
            state.become(before)
            if name:
                return self._with(name, "the loop may end before", node, state)
            return self._many(node, statements, state)

        return run

    def _with(self, name: str, why: str, node: Node, state: State) -> Flow:
        """Run a `for` whose variable has values that nobody knows."""
        self._run.scope(state).assign(name, self._run.unknown(node, why), {})
        return self._many(node, node["Do"], state)

    @staticmethod
    def _left(flow: Flow, state: State) -> Flow:
        """Return how it goes on behind a loop that `break` or `continue 2` has left."""
        if not state.leaving:
            return NEXT
        if len(flow) > 1:
            state.spoil(Unknown("how many loops end is known only when the script runs"))
        state.leaving -= 1
        return flow

    def _many(self, node: Node, statements: list[Node], state: State) -> Flow:
        """Run a loop whose number of rounds is unknown: what a round changes is unknown."""
        why = self._run.unknown(node, "it depends on how often the loop runs")
        ways: Flow = NEXT
        for _ in range(6):
            commands = len(self._run.record.commands)
            after = state.copy()
            flow = self._run.each(statements, after, checked=True)
            if after.leaving:
                after.spoil(why)
                after.leaving = 0
            both = joined(state, after, why) if flow != EXIT else state.copy()
            ways = NEXT | (flow & {Step.RETURN})
            if both == state:
                break
            self._run.record.cut(commands)
            state.become(both)
        else:
            state.spoil(why)
        state.status = None
        return ways
