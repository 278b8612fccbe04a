"""Reads the flags that a command line and its files give: spellings and texts, no values yet.

`parse` converts and checks the values. All faults are returned at once.

A field's name is the flat spelling of its flag, OpenRLHF's before 0.11; `dotted` is that of 0.11.
A flat spelling that other flags follow sets all of them: `--adam_betas` sets policy and critic,
`--actor.adam.betas` only the policy. In a YAML or TOML file, sections follow the dotted spelling
(`actor: {adam: {lr: 1e-6}}`), and flat names stand at the top. A key without a value, or with
null, leaves its flag alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.files import yaml_text
from contract.options import FALSE, TRUE, Fault, MissingFile, UnknownName
from trainer.config.abbreviations import flag_meant
from trainer.config.schema import flags_of, once_for_each

SEE_HELP = "See --help"
"""The remedy of a fault for which nothing better is known."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many words may follow a flag."""

    most: int
    switch: bool = False
    """The flag alone means true; only a word for true or false is its value."""
    repeats: bool = False
    """The values of all its places count together."""


@dataclass
class _Words:
    """The rest of a command line."""

    words: list[str]

    def next(self) -> str:
        return self.words.pop(0)

    def values(self, shape: Shape) -> tuple[str, ...]:
        taken: list[str] = []
        while self.words and len(taken) < shape.most and not self.words[0].startswith("--"):
            if shape.switch and self.words[0].lower() not in TRUE + FALSE:
                break
            taken.append(self.next())
        return tuple(taken)

    def skip_values(self) -> None:
        while self.words and not self.words[0].startswith("--"):
            self.next()


def read_words(argv: Sequence[str], shapes: Mapping[str, Shape]) -> tuple[list[Given], list[Fault]]:
    """Return what `--name value …` and `--name=value` give to the names in `shapes`, and faults.

    Several values after = are separated by commas. The values themselves are not checked.
    """
    left = _Words(list(argv))
    last = ""
    givens: list[Given] = []
    faults: list[Fault] = []
    while left.words:
        word = left.next()
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--") or not name:
            faults.append(_stray(word, last, shapes))
            if word.startswith("-"):
                last = ""
                left.skip_values()
        elif name not in shapes:
            last = ""
            faults.append(unknown(name, shapes))
            left.skip_values()
        else:
            shape, last = shapes[name], name
            texts = _split(value, shape) if equals else left.values(shape)
            before = [one for one in givens if shape.repeats and one.spelling == name]
            givens = [one for one in givens if one not in before]
            givens.append(Given(name, tuple(t for one in before for t in one.texts) + texts))
    return givens, faults


def _stray(word: str, last: str, shapes: Mapping[str, Shape]) -> Fault:
    """Return the fault of a word that is no flag. `last`: the flag before it, if there is one."""
    name, equals, _ = word.lstrip("-").partition("=")
    meant = flag_meant(name, shapes) if name and (equals or word.startswith("-")) else ""
    if meant:
        return Fault(f"'{word}'", "", "belongs to no flag", f"Did you mean {label(meant)}?")
    if not last or word.startswith("-"):
        return Fault(f"'{word}'", "", "belongs to no flag", SEE_HELP)
    most = shapes[last].most
    values = "one value" if most == 1 else f"{most} values"
    takes = "true or false, and alone means true" if shapes[last].switch else values
    return Fault(f"'{word}'", "", f"belongs to no flag: {label(last)} takes {takes}", SEE_HELP)


def _split(value: str, shape: Shape) -> tuple[str, ...]:
    return tuple(value.replace(",", " ").split()) if shape.most > 1 else (value,)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that the user gave, with its spelling and file."""

    spelling: str
    texts: tuple[str, ...]
    file: str = ""
    """Empty: on the command line."""

    @property
    def label(self) -> str:
        return label(self.spelling, self.file)


def label(spelling: str, file: str = "") -> str:
    return f"{file}: {spelling}" if file else f"--{spelling}"


@once_for_each
def aliases(config: type[Any]) -> Mapping[str, tuple[str, ...]]:
    """Return the flags that each spelling sets, first the one that it is named after."""
    found: dict[str, tuple[str, ...]] = {}
    flags = flags_of(config)
    for name, flag in flags.items():
        for spelling in (name, *flag.about.aliases, *flag.about.dotted_spellings):
            assert spelling not in found, spelling
            found[spelling] = (name,)
    for name, flag in flags.items():
        if flag.about.follows:
            found[flag.about.follows] += (name,)
    return found


def unknown(spelling: str, known: Iterable[str], file: str = "") -> Fault:
    """Return a fault that suggests the flag that is meant."""
    near = flag_meant(spelling, known)
    what = "unknown key" if file else "unknown flag"
    remedy = f"Did you mean {near if file else label(near)}?" if near else SEE_HELP
    kind = Fault if near or file else UnknownName
    return kind(label(spelling, file), "", what, remedy)


def resolve(
    givens: Iterable[Given], known: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, Given], list[Fault], list[str]]:
    """Return what was given for each flag, faults for duplicates, warnings for overridden values.

    A spelling of one flag beats a shared one; otherwise the later beats the earlier.
    """
    found: dict[str, Given] = {}
    faults: list[Fault] = []
    warnings: list[str] = []
    in_order = sorted(givens, key=lambda given: len(known[given.spelling]) == 1)
    for given in in_order:
        for name in known[given.spelling]:
            before = found.get(name)
            # A shared spelling and one of a single flag do not conflict: rule and exception.
            if before and len(known[before.spelling]) == len(known[given.spelling]):
                if before.file == given.file:
                    faults.append(_twice(before, given))
                elif before.texts != given.texts:
                    warnings.append(f"{before.label} has no effect: {given.label} says the same")
            found[name] = given
    return found, list(dict.fromkeys(faults)), warnings


def _twice(before: Given, now: Given) -> Fault:
    if before.label == now.label:
        return Fault(now.label, "", "is given twice", "Give it once")
    return Fault(now.label, "", f"{before.label} says the same", "Give one of the two")


STAGES = "stages"
"""The key that a file of a pipeline has, and no file of flags."""
SUFFIXES = {".yaml", ".yml", ".toml"}


def read_file(path: Path, known: Mapping[str, object]) -> tuple[list[Given], list[Fault]]:
    """Return what the file gives to the `known` spellings, and its faults."""
    if path.suffix not in SUFFIXES:
        return [], [_fault(path, "is neither YAML nor TOML", "Name it .yaml, .yml or .toml")]
    try:
        content = _load(path)
    except OSError as error:
        problem, remedy = f"cannot be read: {error.strerror}", "Give a file that this machine sees"
        return [], [MissingFile("--config", str(path), problem, remedy)]
    except yaml_text.NotYamlError as error:
        return [], [_fault(path, str(error), "Correct it")]
    except ValueError as error:
        return [], [_fault(path, f"is broken: {' '.join(str(error).split())}", "Correct it")]
    if isinstance(content, dict) and STAGES in content and STAGES not in known:
        remedy = (
            f"`rollcall plan pipeline {path}` shows its stages, `rollcall pipeline` starts them"
        )
        return [], [_fault(path, "is a pipeline of several jobs", remedy)]
    if not isinstance(content, dict):
        return [], [_fault(path, "holds no keys", "Write one `flag: value` a line")]
    givens, faults = [], []
    for key, value in _flat(content):
        if key not in known:
            faults.append(unknown(key, known, str(path)))
        elif isinstance(value, dict):
            faults.append(Fault(f"{path}: {key}", "", "is not a section", f"Give a value to {key}"))
        elif value is not None:
            givens.append(Given(key, _texts(value), str(path)))
    return givens, faults


def _fault(path: Path, problem: str, remedy: str) -> Fault:
    return Fault("--config", str(path), problem, remedy)


def _load(path: Path) -> Any:
    """Return the file's content. Raises OSError, or ValueError if it cannot be parsed."""
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if twice := _key_twice(yaml_text.composed(text)):
        raise ValueError(f"the key {twice} is there twice")
    return yaml_text.parsed(text) or {}


def _key_twice(node: Any) -> str | None:
    """Return the first key that a section has twice, if any: YAML would take the last."""
    if getattr(node, "id", "") != "mapping":
        return None
    keys = [key.value for key, _ in node.value]
    below = (_key_twice(value) for _, value in node.value)
    return next((key for key in keys if keys.count(key) > 1), None) or next(
        filter(None, below), None
    )


def _flat(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values."""
    for key, value in section.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _texts(value: Any) -> tuple[str, ...]:
    """Return a value as a command line has it: YAML reads 1e-6 as a text, 2 as a number."""
    return tuple(str(part) for part in value) if isinstance(value, list) else (str(value),)
