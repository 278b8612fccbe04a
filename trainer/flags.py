"""Command lines as frozen dataclasses: one declarative field a flag, all faults at once.

Torch-free, and free of every heavy import: `--help` must answer at once.
"""

from __future__ import annotations

import argparse
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What a flag means and which values it takes; its type is its dataclass field's."""

    group: str
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    alias: str = ""
    required: bool = False
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def problem(self, value: Any) -> str | None:
        """Why `value` is out of range, in words; None where it is not."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        if not isinstance(value, int | float):
            return None
        if self.at_least is not None and not value >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.above is not None and not value > self.above:
            return f"must be greater than {self.above:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most:g}"
        return None


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a command line, and what would be right."""

    flag: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        given = f" (given: {self.value})" if self.value else ""
        return f"{self.flag}: {self.problem}{given}. {self.remedy}"


class ConfigError(ValueError):
    """A command line that cannot be run; says every fault at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def flag(default: Any, **about: Any) -> Any:
    """A dataclass field that is a flag: its default and the fields of Flag."""
    return field(default=default, metadata={"flag": Flag(**about)})


def flags_of(config: type[Any]) -> dict[str, tuple[Field[Any], Flag]]:
    """Name → (field, flag) of a dataclass whose fields are made by `flag`."""
    return {f.name: (f, f.metadata["flag"]) for f in fields(config)}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError([Fault(self.prog, "", message, "See --help")])


def parser_of(config: type[Any], prog: str, description: str) -> argparse.ArgumentParser:
    """An argparse parser of `config`'s flags, grouped; values stay text, absent ones are absent."""
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    hints = typing.get_type_hints(config)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, (f, about) in flags_of(config).items():
        group = groups.get(about.group) or parser.add_argument_group(about.group)
        groups[about.group] = group
        names = [f"--{n}" for n in (name, about.alias) if n]
        text = about.help + _suffix(f, about)
        arguments: dict[str, Any] = {"dest": name, "help": text, "default": argparse.SUPPRESS}
        kind = hints[name]
        if kind is bool:
            group.add_argument(*names, action="store_true", **arguments)
        else:
            count = len(typing.get_args(kind)) if typing.get_origin(kind) is tuple else None
            metavar = "{" + ",".join(about.choices) + "}" if about.choices else _kind_word(kind)
            group.add_argument(*names, nargs=count, metavar=metavar, **arguments)
    return parser


def read(
    config: type[T], argv: Sequence[str], prog: str, description: str
) -> tuple[T, list[Fault]]:
    """The command line as a `config`, and what is wrong with single flags.

    A flag at fault keeps its default, so that the caller can look for faults between flags too.
    """
    namespace, extra = parser_of(config, prog, description).parse_known_args(argv)
    given: Mapping[str, Any] = vars(namespace)
    faults = _unknown(config, extra)
    hints = typing.get_type_hints(config)
    values: dict[str, Any] = {}
    for name, (_, about) in flags_of(config).items():
        if name not in given:
            if about.required:
                faults.append(Fault(f"--{name}", "", "is required", about.help))
            continue
        raw = given[name]
        shown = " ".join(raw) if isinstance(raw, list) else str(raw)
        try:
            value = _convert(hints[name], raw)
        except ValueError:
            faults.append(Fault(f"--{name}", shown, f"must be {_article(hints[name])}", about.help))
            continue
        if problem := about.problem(value):
            faults.append(Fault(f"--{name}", shown, problem, about.help))
        else:
            values[name] = value
    return config(**values), faults


def _unknown(config: type[Any], extra: Sequence[str]) -> list[Fault]:
    known = [f"--{name}" for name in flags_of(config)]
    known += [f"--{about.alias}" for _, about in flags_of(config).values() if about.alias]
    faults = []
    after_flag = False
    for token in extra:
        is_flag = token.startswith("--")
        if is_flag:
            word = token.partition("=")[0]
            near = difflib.get_close_matches(
                word.replace("-", "_").replace("__", "--", 1), known, 1
            )
            remedy = f"Did you mean {near[0]}?" if near else "See --help"
            faults.append(Fault(word, "", "unknown flag", remedy))
        elif not after_flag:
            faults.append(Fault(token, "", "belongs to no flag", "See --help"))
        after_flag = is_flag and "=" not in token
    return faults


def _convert(kind: Any, raw: Any) -> Any:
    if isinstance(raw, list):
        return tuple(
            _convert(part, text) for part, text in zip(typing.get_args(kind), raw, strict=True)
        )
    kind = _plain(kind)
    if kind is Path:
        return Path(raw).absolute()  # actors may have another working directory
    return raw if kind in (bool, str) else kind(raw)


def _plain(kind: Any) -> Any:
    """`X | None` → X."""
    if isinstance(kind, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def _kind_word(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return _kind_word(typing.get_args(kind)[0])
    return {int: "INT", float: "NUMBER", Path: "PATH", str: "TEXT"}.get(_plain(kind), "TEXT")


def _article(kind: Any) -> str:
    return {"INT": "a whole number", "NUMBER": "a number"}.get(_kind_word(kind), "a text")


def _suffix(f: Field[Any], about: Flag) -> str:
    """What --help adds: unit and default. argparse formats with %, hence the doubling."""
    notes = [about.unit] if about.unit else []
    if about.required:
        notes.append("required")
    elif f.default not in (None, False, "", MISSING):
        shown = " ".join(map(str, f.default)) if isinstance(f.default, tuple) else f.default
        notes.append(f"default {shown}")
    text = f" ({', '.join(notes)})" if notes else ""
    return text.replace("%", "%%")
