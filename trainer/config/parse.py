"""A command line and the files that it names → a dataclass of flags, with all that is wrong."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from trainer.config import cli, values
from trainer.config.cli import Given, Shape, aliases, label, resolve
from trainer.config.help import help_text
from trainer.config.schema import OVER, Fault, Flag, flags_of

T = TypeVar("T")
CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What a command line says. A flag at fault keeps its default in `config`."""

    config: T
    given: frozenset[str]
    """Fields that were given a value by a spelling of their own."""
    at_fault: frozenset[str]
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...]
    """One sentence for each flag that was given and has no effect."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """A field that is a flag."""

    name: str
    field: Field[Any]
    about: Flag
    kind: Any


def read(config: type[T], argv: Sequence[str], prog: str, description: str) -> Reading[T]:
    """`argv`, and the files that its --config name, as a `config`; what argv gives wins.

    What follows the word OVER wins over all of these. Exits with the help where it is asked for.
    """
    if any(word in ("-h", "--help") for word in argv):
        print(help_text(config, prog, description))
        sys.exit(0)
    declared = _declared(config)
    known = aliases(config)
    shapes = {spelling: _shape(declared[names[0]]) for spelling, names in known.items()}
    before, after = _parted(argv)
    from_line, faults = cli.read_words(before, {**shapes, CONFIG: Shape(1)})
    from_above, wrong = cli.read_words(after, shapes)
    from_files: list[Given] = []
    for given in from_line:
        if given.spelling == CONFIG:
            more, broken = cli.read_file(Path(*given.texts), known)
            from_files += more
            faults += broken
    in_files, twice_in_file, warnings = resolve(from_files, known)
    on_line, twice, _ = resolve((one for one in from_line if one.spelling != CONFIG), known)
    found = in_files | on_line | resolve(from_above, known)[0]
    checked = _checked(declared, found)
    return Reading(
        config(**checked.values),
        frozenset(name for name, one in found.items() if known[one.spelling][0] == name),
        frozenset(checked.at_fault),
        (*faults, *wrong, *twice_in_file, *twice, *checked.faults.values()),
        tuple(dict.fromkeys([*warnings, *checked.warnings])),
    )


def _parted(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words before OVER and those after it."""
    words = list(argv)
    at = words.index(OVER) if OVER in words else len(words)
    return words[:at], words[at + 1 :]


@dataclass(frozen=True, slots=True)
class _Checked:
    """The flags one by one."""

    values: dict[str, Any] = field(default_factory=dict)
    at_fault: set[str] = field(default_factory=set)
    faults: dict[str, Fault] = field(default_factory=dict)
    """By spelling: a shared one is at fault once."""
    warnings: list[str] = field(default_factory=list)


def _checked(declared: Mapping[str, _Declared], given: Mapping[str, Given]) -> _Checked:
    """Each flag's value by itself: its type, its range, whether it has an effect."""
    checked = _Checked()
    for name, one in declared.items():
        if name in given:
            value, fault = _value(one, given[name])
        elif one.about.required:
            value, fault = None, Fault(label(name), "", "is required", one.about.help)
        else:
            continue
        if fault is not None:
            checked.at_fault.add(name)
            checked.faults.setdefault(fault.flag, fault)
            continue
        checked.values[name] = value
        if one.about.no_effect and value != one.field.default:
            checked.warnings.append(f"{given[name].label} has no effect: {one.about.no_effect}")
    return checked


def _value(one: _Declared, given: Given) -> tuple[Any, Fault | None]:
    """The value that was given for a flag, or what is wrong with it."""
    texts = given.texts
    if not texts and one.about.bare is not None:
        texts = (one.about.bare,)
    if not texts and one.kind is bool:
        texts = ("true",)
    shown = "" if one.about.secret else " ".join(texts)
    try:
        value = values.convert(one.kind, [one.about.synonyms.get(text, text) for text in texts])
    except ValueError:
        wrong = f"must be {values.described(one.kind)}"
        return None, Fault(given.label, shown, wrong, _remedy(one.about))
    if problem := one.about.problem(value):
        return None, Fault(given.label, shown, problem, _remedy(one.about))
    if one.about.unsupported and value != one.field.default:
        return None, Fault(given.label, shown, "is not supported", one.about.unsupported)
    return value, None


def _remedy(about: Flag) -> str:
    return about.help[:1].upper() + about.help[1:]


def _declared(config: type[Any]) -> dict[str, _Declared]:
    kinds = typing.get_type_hints(config)
    return {
        name: _Declared(name, field, about, values.plain(kinds[name]))
        for name, (field, about) in flags_of(config).items()
    }


def _shape(one: _Declared) -> Shape:
    return Shape(values.most(one.kind), switch=one.kind is bool)
