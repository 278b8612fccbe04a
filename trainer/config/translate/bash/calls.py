"""Commands: builtins, functions, programs, `eval` and `$(…)` (bash(1), "EXPANSION")."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from contract.launch.shell_wrapping import script_words, unwrapped
from trainer.config.translate.bash import assignments, builtins, files, tools
from trainer.config.translate.bash.flow import MOST_CALLS, NEXT, Flow, Runner, Step
from trainer.config.translate.bash.open_text import is_open
from trainer.config.translate.bash.scope import ARGUMENTS, AWAY, Scope, text_of
from trainer.config.translate.bash.state import ABSENT, State, Unknown
from trainer.config.translate.bash.syntax import (
    Node,
    ScriptSyntaxError,
    Source,
    below,
    line,
    literal,
    parsed,
)
from trainer.config.translate.bash.words import Words
from trainer.config.translate.rows import UNSET

MOST_SCRIPTS = 5
"""Scripts inside each other that are read."""
LEAVES = {"break": Step.BREAK, "continue": Step.CONTINUE, "return": Step.RETURN}
CERTAIN = frozenset(["exit", "return", "eval", "source", ".", "exec", "cd", *builtins.IDLE])
"""Builtins for which the number of their words does not count, or that look by themselves."""
UNTOLD = frozenset(["command", "builtin", "type", "let", "kill", "pushd", "popd"])
"""Builtins whose exit code only a run tells."""
OWN = frozenset([*LEAVES, *UNTOLD, "exit", "eval", "source", ".", "exec"])
"""Builtins that this module runs by itself."""
OF_THE_MACHINE = re.compile(
    r"(.*/)?(activate|\.?bashrc|\.bash_profile|\.zshrc|\.profile|profile|conda\.sh|mamba\.sh"
    r"|set_env\.sh|setvars\.sh|init/\w+)"
)
"""Files that set up the programs of a machine, as the environment does."""
READERS = frozenset(["bash", "sh", "sbatch", "srun", "ssh"])
"""Programs that run what they read from standard input: it is recorded as their last word."""
HOOKS = re.compile(r"(conda|mamba|micromamba|pyenv|direnv|brew|ssh-agent|module\w*|lmod)\b")


class Calls:
    """Runs commands; programs are recorded alone."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._depth = 0
        self._outputs = 0
        """How many `$(…)` are being read, one in another."""

    def call(self, node: Node, state: State, *, checked: bool) -> Flow:
        scope = self._run.scope(state)
        arguments = node.get("Args") or []
        if len(arguments) > 1 and literal(arguments[0]) == "$":
            arguments = arguments[1:]  # a guide's prompt
        expanded, record = Words(scope), self._run.record
        record.emptied = {}
        words = expanded.fields(arguments, command=True)
        set_ = node.get("Assigns") or []
        if not words:
            for one in set_:
                assignments.assign(scope, one)
            if not any(one.get("Type") == "CmdSubst" for one in below(node)):
                state.status = 0  # else it is that of the substitution
            return NEXT
        while (
            words[0] in ("command", "builtin") and len(words) > 1 and not words[1].startswith("-")
        ):
            words = words[1:]
        first = words[0]
        if first in state.functions:
            given = expanded.uncertain or tuple(words[1:])
            return self._with_prefix(
                node, state, lambda: self._function(first, given, node, state, checked=checked)
            )
        if first in builtins.BUILTINS or first in OWN:
            if expanded.uncertain and first not in CERTAIN:
                self._uncertain(first, node, state, expanded.uncertain)
                return NEXT
            return self._with_prefix(node, state, lambda: self._own(words, node, state))
        prefix = []
        for one in set_:
            inner, name = replace(scope, state=state.copy()), one["Name"]["Value"]
            assignments.assign(inner, one)
            prefix.append(f"{name}={text_of(inner.value(name)) or ''}")
            record.emptied |= record.made_of.pop(name, {})
        reads = PurePath(first).name in READERS and isinstance(state.source, str)
        script = [str(state.source)] if reads else []
        path = text_of(scope.value("PATH")) if state.whole else None
        is_asked = self._outputs > 0 or first in tools.QUESTIONS
        if path and is_asked and tools.is_away(first, path):
            record.away.append((first, line(node)))
        if path and (found := tools.probed(words, path)) is not None:
            builtins.write(scope, found)
            state.status = int(not found)
            return NEXT
        if expanded.uncertain or not self._nested(words, prefix, state):
            record.add([*prefix, *words, *script], state)
            self._program(words, node, state)
        return NEXT

    def _uncertain(self, first: str, node: Node, state: State, why: Unknown) -> None:
        """Take over a builtin or a function of which nobody knows how many words it gets."""
        state.status = None
        if first == "set":
            state.arguments = why
        elif first in ("[", "test"):
            pass
        elif first == "unset":
            state.hide(why)
        elif first in ("echo", "printf"):
            builtins.write(self._run.scope(state), why)
        else:
            state.spoil(Unknown.at(node, f"`{self._run.shown(node)}` may set it"))

    def _program(self, words: list[str], node: Node, state: State) -> None:
        """Take over what a program writes, if that is known."""
        source = None if isinstance(state.source, Unknown) else state.source
        here = "" if state.directory and not state.whole else self._run.place.directory
        if state.whole and isinstance(state.directory, str):
            here = state.directory
        if state.whole and words[0] == "date":
            text = tools.date(words, self._run.place.began, self._zone(state))
        else:
            text = tools.output(words, source, here) if tools.reads(words, source) else None
        if state.whole and words in (["env"], ["printenv"]):
            text = self._environment(state)
        why = Unknown.at(node, f"only a run tells what `{words[0]}` writes")
        is_found = words[0] != "grep" or bool(text)
        quiet = words[0] == "grep" and any(re.fullmatch(r"-\w*q\w*", word) for word in words[1:])
        shown = "" if quiet and text is not None else text
        builtins.write(self._run.scope(state), why if shown is None else shown)
        state.status = None if text is None else int(not is_found)

    def _environment(self, state: State) -> str | None:
        """Return the variables that programs get, a line each; None if one is not known."""
        names = [name for name in self._run.record.exported if name in state.variables]
        values = {name: state.variables[name] for name in names}
        if any(isinstance(value, Unknown) for value in values.values()):
            return None
        known = {name: text_of(value) for name, value in values.items()}
        return "".join(f"{name}={text}\n" for name, text in known.items() if text is not None)

    def _zone(self, state: State) -> str | None:
        """Return the time zone that programs get; None if only a run tells it."""
        value = state.variables.get("TZ")
        return None if isinstance(value, Unknown) else text_of(value) or ""

    def _with_prefix(self, node: Node, state: State, run: Callable[[], Flow]) -> Flow:
        """Run a builtin or a function, with the variables that are set for it alone."""
        scope = self._run.scope(state)
        names = [one["Name"]["Value"] for one in node.get("Assigns") or []]
        kept = {name: state.variables.get(name, ABSENT) for name in names}
        for one in node.get("Assigns") or []:
            assignments.assign(scope, one)
        flow = run()
        state.restore(kept)
        return flow

    def _own(self, words: list[str], node: Node, state: State) -> Flow:
        first, rest = words[0], words[1:]
        if first == "exit":
            if rest:
                state.status = int(rest[0]) & 255 if rest[0].isdecimal() else None
            return self._run.ended(node)
        if first in LEAVES:
            return self._leave(first, rest, node, state)
        if first in ("eval", "source", "."):
            return self._more(first, rest, node, state)
        if first == "exec":
            if rest:
                if not self._nested(rest, [], state):
                    self._run.record.add(rest, state)
                return self._run.ended(node)
            return NEXT
        if first in UNTOLD:
            if first in ("pushd", "popd"):
                state.directory = self._run.unknown(node, "it changes the directory")
            state.status = None
            return NEXT
        if any(map(is_open, rest)) and first in ("unset", "mapfile", "readarray", "read"):
            why = self._run.unknown(node, f"`{self._run.shown(node)}` may change it")
            state.hide(why)
        state.status = builtins.BUILTINS[first](self._run.scope(state), words, node)
        return NEXT

    def _leave(self, first: str, rest: list[str], node: Node, state: State) -> Flow:
        """Run `return`, `break` or `continue`; out of place, bash complains and goes on."""
        if first == "return":
            if not state.saved:
                state.status = 2
                return NEXT
            if rest:
                state.status = int(rest[0]) & 255 if rest[0].isdecimal() else None
        elif not self._run.loops:
            state.status = 0
            return NEXT
        elif rest:
            count = int(rest[0]) if rest[0].isdecimal() else 1
            state.leaving = min(count, self._run.loops) - 1
        return frozenset([LEAVES[first]])

    def _more(self, first: str, rest: list[str], node: Node, state: State) -> Flow:
        """Run `eval`; a sourced file is one of the machine's, or may set anything."""
        shown = self._run.shown(node)
        if first != "eval":
            return self._sourced(rest, node, state)
        text = " ".join(rest)
        if any(is_open(word) for word in rest):
            self._run.record.sets_up = True
            if not HOOKS.search(shown):
                state.spoil(Unknown.at(node, f"`{shown}` may set it"))
            state.status = None
            return NEXT
        if self._depth > MOST_CALLS:
            state.spoil(Unknown.at(node, f"`{shown}` goes too deep"))
            return NEXT
        try:
            source = parsed(text)
        except ScriptSyntaxError:
            state.spoil(Unknown.at(node, f"`{shown}` is not read"))
            return NEXT
        return self._inside(source, state)

    def _inside(self, source: Source, state: State) -> Flow:
        """Run statements of another text."""
        outer, self._run.source = self._run.source, source
        self._depth += 1
        flow = self._run.each(source.statements, state)
        self._depth -= 1
        self._run.source = outer
        return flow

    def _sourced(self, rest: list[str], node: Node, state: State) -> Flow:
        """Run a sourced file that is there; one of the machine is part of the environment."""
        run, word = self._run, next(iter(rest), "")
        source = (
            None if OF_THE_MACHINE.fullmatch(word.replace(UNSET, "")) else self._read(word, state)
        )
        if source is None:
            self._not_read(word, node, state)
            return NEXT
        place, arguments = run.place, state.arguments
        run.place = replace(place, sourced=word)
        state.arguments = tuple(rest[1:]) or arguments
        state.saved = (*state.saved, {})  # so that `return` ends the file
        flow = self._inside(source, state)
        state.restore(state.saved[-1])
        state.saved, run.place = state.saved[:-1], place
        state.arguments = arguments if rest[1:] else state.arguments
        left = flow - {Step.RETURN}
        return left | NEXT if flow != left else left

    def _not_read(self, word: str, node: Node, state: State) -> None:
        """Take over a sourced file whose text is not known."""
        run = self._run
        if state.whole and files.is_absent(word, state, run.record, run.place):
            run.record.absent[word] = line(node)
            state.status = 1
            return
        if not OF_THE_MACHINE.fullmatch(word.replace(UNSET, "")):
            state.spoil(Unknown.at(node, f"`{run.shown(node)}` may set it"))
        state.status, run.record.sets_up = None, True

    def _read(self, word: str, state: State) -> Source | None:
        """Return the text of a script that is there; None if it cannot be read before a run."""
        text = files.text_of_script(word, state, self._run.record, self._run.place)
        return None if text is None else self._parsed(text)

    def _parsed(self, text: str) -> Source | None:
        try:
            return parsed(text) if self._depth < MOST_SCRIPTS else None
        except ScriptSyntaxError:
            return None

    def _nested(self, words: list[str], prefix: list[str], state: State) -> bool:
        """Run the script that a shell runs, with the variables that it gets.

        Return False if the words are another program, or the script cannot be read before a run.
        """
        run, record = self._run, self._run.record
        if any(map(is_open, [*words, *prefix])):
            return False
        started = unwrapped([*prefix, *words])
        script = script_words(started.command)
        if script[:1] == ["-c"]:
            text, script = script[1], script[2:] or ["bash"]
            source = self._parsed(text) if state.whole else None
        else:
            source = self._read(script[0], state) if script else None
        if source is None:
            return False
        given = {name: state.variables[name] for name in record.exported if name in state.variables}
        inner = State(state.given, tuple(script[1:]), state.whole)
        inner.variables |= {**given, **started.variables}
        inner.directory, inner.spoilt = state.directory, state.spoilt
        outer = run.place, run.loops, dict(record.exported), record.ended, record.unbound
        run.place, run.loops = replace(run.place, script=script[0], sourced=""), 0
        record.exported |= dict.fromkeys(started.variables)
        self._inside(source, inner)
        run.place, run.loops, record.exported, record.ended, record.unbound = outer
        state.status = inner.status
        builtins.write(run.scope(state), Unknown(f"only a run tells what {script[0]} writes"))
        return True

    def _function(
        self,
        name: str,
        given: tuple[str, ...] | Unknown,
        node: Node,
        state: State,
        *,
        checked: bool,
    ) -> Flow:
        body = state.functions[name]
        if body is None or len(state.saved) > MOST_CALLS:
            state.spoil(Unknown.at(node, f"which `{name}` runs is not known"))
            state.status = None
            return NEXT
        arguments = state.arguments
        state.arguments, state.saved = given, (*state.saved, {})
        loops, self._run.loops = self._run.loops, 0
        record = self._run.record
        outer = record.made_of.get(ARGUMENTS, {})
        record.made_of[ARGUMENTS] = record.emptied
        flow = self._run.statement(body, state, checked=checked)
        record.made_of[ARGUMENTS] = outer
        self._run.loops = loops
        state.restore(state.saved[-1])
        state.saved, state.arguments = state.saved[:-1], arguments
        left = flow - {Step.RETURN}
        return left | NEXT if flow != left else left

    def output_of(self, scope: Scope, node: Node) -> str | None:
        """Return what `$(…)` writes; None if only a run of the script tells it."""
        inner = scope.state.copy()
        inner.output = ()
        inner.options -= {"errexit"}
        record = self._run.record
        outer = record.emptied
        commands, notes, ended = len(record.commands), len(record.notes), record.ended
        said, away = len(record.said), len(record.away)
        self._outputs += 1
        self._run.each(node.get("Stmts") or [], inner)
        self._outputs -= 1
        record.cut(commands)
        silent = {AWAY + name: place for name, place in record.away[away:]}
        record.emptied = outer | record.emptied | silent
        del record.notes[notes:], record.said[said:]
        record.ended = ended
        files = any("Cmd" not in one for one in node.get("Stmts") or [])
        if files or isinstance(inner.output, Unknown):
            scope.state.status = None
            return None
        scope.state.status = inner.status
        return "".join(inner.output).rstrip("\n")
