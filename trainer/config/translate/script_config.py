"""Which arguments of GRPOConfig certainly reach a script's trainer, and which only may."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trainer.config.translate import script_changes as changes
from trainer.config.translate import script_classes as classes
from trainer.config.translate.python_source import (
    Source,
    constant,
    is_empty,
    is_none,
    named,
    path,
    plain_name,
    shown,
)
from trainer.config.translate.script_fields import PARSERS
from trainer.config.translate.trl import TRL

CONFIG = "GRPOConfig"
COMMAND_LINES = ("click", "typer", "fire", "absl", "tyro", "hydra", "jsonargparse", "docopt")
"""Packages that read a script's own options, which are not followed here."""


@dataclass(frozen=True)
class Said:
    """An argument, or a sentence on why its value is not certain."""

    key: str
    node: ast.expr | None = None
    why: str = ""
    remedy: str = "give what it sets as flags"
    """What to do if no flag is named."""


@dataclass
class Configs:
    """All that a script says of its config."""

    source: Source
    trainers: Sequence[ast.Call]
    passed: Sequence[ast.expr]
    """What the trainers get as `args`."""
    calls: list[ast.Call] = field(default_factory=list, init=False)
    parsed: list[str] = field(default_factory=list, init=False)
    """Names of classes that a parser fills."""
    has_parsed: bool = field(default=False, init=False)
    """Whether a parser fills the config itself."""
    own: list[classes.Own] = field(default_factory=list, init=False)
    """The user's classes of the config, from the last one to its bases."""
    absent: list[str] = field(default_factory=list, init=False)
    """Sentences on classes that are not here."""

    def __post_init__(self) -> None:
        source, kinds = self.source, self.source.kinds(CONFIG)
        parts = [part for call in source.calls(PARSERS) for part in ast.walk(call)]
        self.parsed = [name for one in parts if (name := plain_name(one))]
        used = [source.resolved(one) for one in self.passed]
        made = [one for one in used if isinstance(one, ast.Call)]
        names = {*kinds, *(n for call in made if (n := plain_name(call.func)) and self._is_own(n))}
        chosen = [one for one in made if named(one.func) in names]
        if not self.trainers or self.passed:
            self.calls = [*dict.fromkeys(chosen or source.calls(names))]
        for name in dict.fromkeys([*map(_class_of, (*made, *self.calls)), *self.parsed]):
            chain = classes.found(source, name)
            if chain is None:
                self.absent.append(
                    f"{name} of {source.imports.get(name, name)}: the file of this class, or of "
                    "its base, is not here, so what it sets"
                )
                self.has_parsed |= name in self.parsed
            elif self._is_own(name):
                self.own += [one for one in chain if one not in self.own]
        self.has_parsed |= any(name in kinds or self._is_own(name) for name in self.parsed)

    def _is_own(self, name: str) -> bool:
        """Whether a class of the user's is one of TRL's config."""
        chain = classes.found(self.source, name) or []
        bases = ((one.source, named(base)) for one in chain for base in one.node.bases)
        return any(f".{s.imports.get(b, b)}".endswith(f".{CONFIG}") for s, b in bases)

    def said(self) -> Iterator[Said]:
        """Yield the arguments in their order: defaults, what calls give, and later changes."""
        for own in reversed(self.own):
            for name, node, line in classes.fields(own):
                where = f"line {line} of {own.source.file}: the default {own.node.name}.{name}"
                yield from _of_class(name, node, where)
        yield from self._of_passed()
        yield from self._of_replaced()
        yield from self._of_calls()
        for own in reversed(self.own):
            for name, node, line in classes.after(own):
                where = f"line {line} of {own.source.file}: {own.node.name}.{classes.AFTER}"
                yield from _of_class(name, node, f"{where} sets {name or 'attributes'}")
        yield from self._of_changes()
        yield from self._of_trainings()

    def overruled(self) -> set[str]:
        """Return the arguments that the script sets once the command's flags are read."""
        after = {name for own in self.own for name, *_ in classes.after(own)}
        return after | ({one.key for one in self._changes()} if self.has_parsed else set())

    def _of_passed(self) -> Iterator[Said]:
        """Yield the names of configs that another value has, too."""
        names, functions = self._names(), self.source.functions
        for one in self.passed if self.calls else ():
            if not isinstance(one, ast.Name) or self.source.resolved(one) in self.calls:
                continue
            for part, value, _ in self.source.bindings(one.id):
                is_call = isinstance(value, ast.Call)
                is_made = value in self.calls or (is_call and named(value.func) in functions)  # type: ignore[union-attr]
                if not (is_made or isinstance(part, ast.arg) or (value and path(value) in names)):
                    line = getattr(part, "lineno", 0)
                    yield Said("", why=f"line {line}: another value of args={one.id}")

    def _of_replaced(self) -> Iterator[Said]:
        """Yield what is called GRPOConfig and is another thing, such as a `partial` of it."""
        for part, value in changes.replaced(self.source, self.source.kinds(CONFIG)):
            why = f"line {getattr(part, 'lineno', 0)}: {changes.text(part)}"
            given = [*self.source.arguments(value)] if isinstance(value, ast.Call) else []
            for key in [key for key, _ in given] or [""]:
                yield Said(key, why=why)

    def _of_calls(self) -> Iterator[Said]:
        found = [[*self._arguments(call)] for call in self.calls]
        end = next(iter(self.trainers), None)
        if len(found) == 1 and end and self.source.places.is_open(self.calls[0], end):
            when = self.source.places.condition(self.calls[0])
            where = f"line {self.calls[0].lineno}: {CONFIG}"
            for key, node in found[0]:
                yield Said(key, why=f"{where}({key}={shown(node)}), {when},")
            return
        if len(found) < 2:
            for given in found:
                yield from (Said(key, node) for key, node in given)
            return
        lines = f"lines {' and '.join(str(call.lineno) for call in self.calls)}"
        said = f"{lines}: {len(found)} {CONFIG}s, of which only a run tells the right one,"
        yield Said("", why=said, remedy="give the values of one as flags")
        for key in dict.fromkeys(key for given in found for key, _ in given):
            nodes = [node for given in found for name, node in given if name == key]
            if len(nodes) == len(found) and len({ast.dump(one) for one in nodes}) == 1:
                yield Said(key, nodes[0])
            else:
                values = " or ".join(map(shown, nodes))
                yield Said(key, why=f"{lines}: {key}={values}")

    def _arguments(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        for place, node in enumerate(call.args):
            yield "output_dir" if place == 0 else "", node
        yield from self.source.arguments(call)

    def _changes(self) -> list[changes.Change]:
        made = {named(call.func) for call in (*self.trainers, *self.calls)}
        return changes.of_config(self.source, self._names(), made)

    def _names(self) -> set[str]:
        names = {path(one) for one in self.passed} | {*_made(self.source, self.calls)}
        return changes.aliases(self.source, names)

    def _of_changes(self) -> Iterator[Said]:
        places, end = self.source.places, next(iter(self.trainers), None)
        for one in self._changes():
            text = changes.text(one.node)
            if not one.key:
                yield Said("", why=f"line {one.line}: {text}, which may change any argument,")
            elif one.value is not None and places.is_certain(one.node, end):
                yield Said(one.key, one.value)
            else:
                when = f", {places.condition(one.node)}," if one.value is not None else ""
                yield Said(one.key, why=f"line {one.line}: {text}{when}")

    def _of_trainings(self) -> Iterator[Said]:
        """Yield what is changed in a trainer, and that there are several trainings."""
        source = self.source
        names = changes.aliases(source, {*_made(source, self.trainers)})
        for one in changes.of_trainer(source, names):
            text = changes.text(one.node)
            yield Said(one.key, why=f"line {one.line}: {text}, set once the trainer is made,")
        known = {*self._names(), *names, *(f"{name}.args" for name in names)}
        known |= source.options.parsed
        for one in changes.elsewhere(source, known):
            if TRL.has(one.key):
                text = changes.text(one.node)
                yield Said(one.key, why=f"line {one.line}: {text}, which may be the config's,")
        trained = [
            one
            for one in source.calls(["train"])
            if isinstance(one.func, ast.Attribute)
            and (path(one.func.value) in names or one.func.value in self.trainers)
        ]
        for several in (self.trainers, trained):
            if len(several) > 1 or any(map(source.places.repeats, several)):
                lines = ", ".join(str(one.lineno) for one in several)
                said = f"line {lines}: to train more than once in a script"
                yield Said("", why=said, remedy="translate the command of each run")
                return


def is_read_elsewhere(source: Source) -> bool:
    """Whether the command has options of the script's that are not known here."""
    names = {*source.modules.values(), *(one.split(".")[0] for one in source.imports.values())}
    is_other = bool(names & {*COMMAND_LINES}) or source.options.is_open
    return is_other and not source.calls(PARSERS)


def reads_option(program: str, flag: str) -> bool:
    """Return whether a flag is an option of a script's own, and none of TRL's parser."""
    if not program.endswith(".py"):
        return False
    source = Source(program)
    return bool(source.options.of(flag)) or is_read_elsewhere(source)


def _class_of(call: ast.Call) -> str:
    return plain_name(call.func)


def _made(source: Source, calls: Sequence[ast.Call]) -> Iterator[str]:
    """Yield the names that are given what these calls return."""
    for one in source.nodes:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value in calls:
            of = one.targets if isinstance(one, ast.Assign) else [one.target]
            yield from (name for to in of if (name := path(to)))


def _of_class(name: str, node: ast.expr | None, where: str) -> Iterator[Said]:
    is_known = node is not None and (is_none(node) or is_empty(node) or constant(node) is not None)
    if name and not TRL.of(name):
        return  # a field of the user's own
    yield Said(name, node) if is_known and name else Said(name, why=where)
