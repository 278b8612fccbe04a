"""Arguments of `train` → words of a command line, and every fault of them as Python spells it."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from contract.options import FALSE, TRUE, ConfigError, Fault, MissingFile, MissingFlag, nearest
from contract.run_dir import RunFiles, write_atomically
from env.environments.environment_file_check import METHODS
from env.types import IN_PYTHON, brief
from env.user_code import SignatureError, check_signature, defined_at, is_of_verl
from trainer.config.code_findings import Trouble
from trainer.config.config import Config
from trainer.config.parse import CONFIG, given_texts, unchecked
from trainer.config.read_flags import SEE_HELP, aliases
from trainer.config.schema import flags_of
from trainer.config.values import most

OWN = ("reward", "environment", "callbacks", CONFIG)
"""Arguments of `train` that are no flags, or more than their flag."""
DASHED = re.compile(r"(?<![\w-])--([A-Za-z_][\w.]*)")
REWARD_REMEDY = (
    "Give a reward's name, a function, or a list of them. A weight is behind a name: "
    '["gsm8k:1", "length:0.5"]'
)
REWARD_KINDS = (
    "A function takes a list of requests, or (completions, **columns), or "
    "(queries, prompts, labels), or (data_source, solution_str, ground_truth, extra_info)"
)
RUN_DIR_REMEDY = 'Give a directory, such as run_dir="run"; the run saves what it makes there'
ENVIRONMENT_REMEDY = "Give an environment's name, a class, or a function that makes one"
VALUE_REMEDY = "Give a text, a number, a path, True or False, or a list of these"
JSON_REMEDY = "Give texts, numbers, lists and dictionaries, as JSON has them"
DATA_REMEDY = (
    "Give a path, a data set of the hub, or rows: a list of dictionaries, a datasets.Dataset or a "
    "DataFrame"
)
SENTENCE = re.compile(
    r"--(?P<flag>\w+)(?: (?P<value>[^\s:]+))?: (?P<problem>.+?)\. (?P<remedy>[A-Z].+)", re.DOTALL
)
"""A sentence that tells a fault of a flag, and what to do."""
DATA = ("prompt_data", "eval_dataset")
"""Flags whose value may be rows of this process."""
TABLES: Mapping[tuple[str, str], Callable[[Any], Sequence[Mapping[str, Any]]]] = {
    ("datasets", "Dataset"): list,
    ("pandas", "DataFrame"): lambda table: (
        table.astype(object).where(table.notna(), None).to_dict("records")
    ),
    ("polars", "DataFrame"): lambda table: table.to_dicts(),
    ("pyarrow", "Table"): lambda table: table.to_pylist(),
}
"""Module and class of a table → what makes a list of its rows."""


def faults(reward: Any, environment: Any, flags: Mapping[str, object]) -> list[Fault]:
    """Return what is wrong with each argument by itself, before its text is read."""
    several = reward if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
    found = [
        *(fault for one in several if one is not None for fault in _of_reward(one)),
        *(_of_environment(environment) if environment is not None else ()),
    ]
    if isinstance(reward, Sequence) and not reward:
        found.append(Fault("reward", None, "it is empty", REWARD_REMEDY))
    for name, value in flags.items():
        if name != CONFIG and name not in aliases(Config):
            found.append(unknown(name))
        elif value is not None and not (_is_data(name) and _is_table(value)):
            try:
                _texts(name, value)
            except ConfigError as wrong:
                found += wrong.faults
    return found


def _of_reward(one: object) -> Iterator[Fault]:
    if isinstance(one, str):
        return
    if not callable(one):
        yield Fault("reward", None, _kind(one), REWARD_REMEDY)
    elif isinstance(one, type):
        name = one.__name__
        yield Fault("reward", None, f"{name} is a class", f"Give a function or an object, {name}()")
    else:
        yield from _of_function(one)


def _of_function(function: Callable[..., Any]) -> Iterator[Fault]:
    """Yield why nobody can call a reward function. Columns are seen when it is tried."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a program in C
        return
    if "completions" in names or is_of_verl(names):
        return
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function):
        problem = f"{name} is an async function"
        yield Fault("reward", None, problem, "Only functions of TRL's and verl's kind may be async")
        return
    try:
        check_signature(function, ([], [], []) if "queries" in names else ([],), {})
    except SignatureError as error:
        yield Fault("reward", None, str(error), REWARD_KINDS)


def _of_environment(environment: object) -> Iterator[Fault]:
    if not (isinstance(environment, str) or callable(environment)):
        kind = type(environment)
        is_one = callable(getattr(kind, "reset", None))
        made = f"Give the class, {kind.__name__}, or `lambda: {kind.__name__}(…)`"
        remedy = f"{made}: each episode has its own object" if is_one else ENVIRONMENT_REMEDY
        yield Fault("environment", None, _kind(environment), remedy)
    elif isinstance(environment, type):
        yield from _of_class(environment)


def _of_class(environment: type) -> Iterator[Fault]:
    """Yield why no episode can call a method of an environment. A trial shows all else."""
    from env.episodes.environment import Environment  # `import rollcall` is light

    if not issubclass(environment, Environment):
        return  # of TRL: its methods have other arguments
    for name in METHODS:
        told = [*inspect.signature(getattr(Environment, name)).parameters]
        method = getattr(environment, name)
        kept = inspect.getattr_static(environment, name)
        has_self = not isinstance(kept, staticmethod | classmethod)
        try:
            check_signature(method, told if has_self else told[1:], {})
        except SignatureError:
            file, line = defined_at(method)
            where = f" ({file}:{line})" if file else ""
            wanted = "one argument" if told[1:] else "no argument"
            problem = f"{environment.__name__}.{name}{where} must take {wanted} after self"
            remedy = f"Write `async def {name}({', '.join(told)})`"
            yield Fault("environment", None, problem, remedy)


def _kind(value: object) -> str:
    kind = type(value).__name__
    return f"{' '.join(brief(value).split())} is {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def to_words(flags: Mapping[str, object]) -> list[str]:
    """Return flags as the words of a command line. Raises ConfigError."""
    words: list[str] = []
    for name, value in flags.items():
        if value is not None:
            words += _words(name, [] if value is True else _texts(name, value))
    return words


def _words(name: str, texts: Sequence[str]) -> list[str]:
    """Return a flag and its values. A value that words alone would not give it is behind a =."""
    kinds = _kinds(name)
    limit = max(map(most, kinds), default=1)
    if limit == 1 or len(texts) > limit:
        texts = [",".join(texts)] if texts else []
    if len(texts) == 1:
        (text,) = texts
        is_no_switch = bool in kinds and text.lower() not in TRUE + FALSE
        if text.startswith("--") or text == "-h" or is_no_switch or (limit > 1 and "," in text):
            return [f"--{name}={text}"]
    return [f"--{name}", *texts]


def _kinds(name: str) -> list[Any]:
    """Return the types of the flags that a spelling sets."""
    flags = flags_of(Config)
    return [flags[one].kind for one in aliases(Config).get(name, ())]


def _is_data(name: str) -> bool:
    return any(flag in DATA for flag in aliases(Config).get(name, ()))


def _texts(name: str, value: Any) -> list[str]:
    """Return the texts of a flag's value. Raises ConfigError."""
    if isinstance(value, Mapping) and not _is_data(name):
        try:
            return [json.dumps(value, default=_as_json)]
        except (TypeError, ValueError) as error:
            raise ConfigError([Fault(name, None, f"it is no JSON: {error}", JSON_REMEDY)]) from None
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        value = value.tolist()  # an array of numpy or torch
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        if not value:
            raise ConfigError([Fault(name, None, "it is empty", _remedy(name, value))])
        return [_text(name, part) for part in value]
    return [_text(name, value)]


def _text(name: str, value: Any) -> str:
    """Return one value as a command line has it. Raises ConfigError."""
    if hasattr(value, "item") and not getattr(value, "ndim", 0):
        value = value.item()  # a number of numpy or torch
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Real):
        return str(value)
    if isinstance(value, os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    raise ConfigError([Fault(name, None, _kind(value), _remedy(name, value))])


def _remedy(name: str, value: Any) -> str:
    """Return what a flag takes in place of a value."""
    if _is_data(name):
        splits = list(value) if isinstance(value, Mapping) else []
        is_split = splits and _is_table(value[splits[0]])
        return f"Give one of its splits: {', '.join(splits)}" if is_split else DATA_REMEDY
    if callable(value) and {*_fields(name)} & {*_fields("reward"), "remote_rm_url"}:
        return "Give it as reward="
    takes_function = [flags_of(Config)[one].about.or_function for one in aliases(Config)[name]]
    if callable(value) and any(takes_function):
        return "Give the function as a text, FILE.py:NAME"
    return VALUE_REMEDY


def with_rows_as_files(
    stack: ExitStack, flags: Mapping[str, object]
) -> tuple[dict[str, object], dict[Path, Path]]:
    """Return the flags with the path of a file in place of rows, and the files that are to move.

    The file is in the run directory, as all nodes read it. Rows that it does not have yet are
    beside it until the stack ends: whoever has checked the flags moves them to their place. Without
    a run directory the rows stay out. Raises ConfigError for what is no row, and OSError.
    """
    tables = {name: value for name, value in flags.items() if _is_data(name) and _is_table(value)}
    rest = {name: value for name, value in flags.items() if name not in tables}
    moves: dict[Path, Path] = {}
    if not tables:
        return rest, moves
    words = to_words(rest)
    if "run_dir" not in given_texts(words):
        return rest, moves
    into = RunFiles(unchecked(words).files.root).root / "data"
    for name, table in tables.items():
        text = "".join(f"{line}\n" for line in _lines(name, table))
        file = into / f"{aliases(Config)[name][0]}.jsonl"
        rest[name] = file
        if not (file.is_file() and file.read_text() == text):
            rest[name] = beside = stack.enter_context(_beside(file, text))
            moves[beside] = file
    return rest, moves


@contextmanager
def _beside(file: Path, text: str) -> Iterator[Path]:
    """Write a text beside a file; remove it, and directories made for it, if it is still there."""
    made = [one for one in file.parents if not one.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.stem}-{os.getpid()}{file.suffix}")
    try:
        write_atomically(beside, text)
        yield beside
    finally:
        beside.unlink(missing_ok=True)
        for directory in made:
            with suppress(OSError):  # the run has begun in it
                directory.rmdir()


def in_place(fault: Fault, moves: Mapping[Path, Path]) -> Fault:
    """Return a fault with the files where the run has them."""
    path, problem, remedy = fault.path, fault.problem, fault.remedy
    for beside, file in moves.items():
        path, problem, remedy = (
            one.replace(str(beside), str(file)) for one in (path, problem, remedy)
        )
    return replace(fault, path=path, problem=problem, remedy=remedy)


def _is_table(value: object) -> bool:
    rows = isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value)
    return rows or _reader(value) is not None


def _reader(value: object) -> Callable[[Any], Sequence[Mapping[str, Any]]] | None:
    """Return what makes rows of a table; its module is imported already if it is one."""
    for (module, name), read in TABLES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return read
    return None


def _lines(name: str, table: Any) -> Iterator[str]:
    """Yield each row as a line of JSON. Raises ConfigError."""
    rows = (_reader(table) or list)(table)
    if not rows:
        raise ConfigError([Fault(name, None, "it has no rows", DATA_REMEDY)])
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            problem = f"row {number}: {_kind(row)}"
            raise ConfigError([Fault(name, None, problem, "Give a dictionary for each row")])
        for column, value in row.items():
            try:
                json.dumps(value, default=_as_json)
            except (TypeError, ValueError):
                problem = f"row {number}, column {column}: {_kind(value)}"
                raise ConfigError([Fault(name, None, problem, JSON_REMEDY)]) from None
        known = {column: None if value != value else value for column, value in row.items()}
        yield json.dumps(known, ensure_ascii=False, default=_as_json)


def _as_json(value: Any) -> Any:
    """Return what JSON has for a value of numpy, of torch, or a time. Raises TypeError."""
    for method in ("tolist", "isoformat"):
        if callable(made := getattr(value, method, None)):
            return made()
    raise TypeError(f"{type(value).__name__} is not JSON")


def unknown(name: str) -> Fault:
    """Return the fault of an argument that there is not, with the nearest one."""
    near = _nearest(name)
    remedy = f"Did you mean {near}?" if near else "docs/flags.md lists the arguments"
    return Fault(name, None, "unknown argument", remedy)


def _nearest(name: str) -> str:
    return nearest(name, (*OWN, *aliases(Config)))


def in_python(said: str) -> str:
    """Return a sentence with flags as the arguments that they are."""
    known = aliases(Config)
    said = said.replace(f"--environment {IN_PYTHON}", "--environment")
    said = said.replace("give --remote_rm_url", "give reward")
    return DASHED.sub(lambda one: one[1] if one[1] in known or one[1] in OWN else one[0], said)


def mentioned(fault: Fault) -> set[str]:
    """Return the flags that a fault is about, whatever they are called there."""
    words = re.findall(r"[A-Za-z_][\w.]*", f"{fault.path} {fault.problem} {fault.remedy}")
    return {one for word in words for one in _fields(word)}


def meant_by(names: Iterable[str]) -> Iterator[str]:
    """Yield the flags that these spellings set, or that misspelt ones are nearest to."""
    for name in names:
        yield from _fields(name) or _fields(_nearest(name))


def _fields(name: str) -> Sequence[str]:
    """Return the flags that a spelling sets; an argument that is no flag is itself."""
    return aliases(Config).get(name, (name,) if name in OWN else ())


def as_argument(fault: Fault) -> Fault:
    """Return a fault whose flags are spelt as arguments."""
    if isinstance(fault, MissingFlag) and fault.path == "--remote_rm_url":
        more = "Or give reward_pretrain, or an environment that scores"
        return Fault("reward", None, "is required", f"{REWARD_REMEDY}. {more}")
    if isinstance(fault, MissingFlag) and fault.path == "--run_dir":
        return Fault("run_dir", None, fault.problem, RUN_DIR_REMEDY)
    if not fault.path:
        return of_sentence(fault.problem)
    if isinstance(fault, MissingFile):
        fault = fault.with_place()
    remedy = "docs/flags.md lists the arguments" if fault.remedy == SEE_HELP else fault.remedy
    path, problem, remedy = map(in_python, (fault.path, fault.problem, remedy))
    return replace(fault, path=path, problem=problem, remedy=remedy)


def of_code(refused: Iterable[Trouble]) -> ConfigError:
    """Return the error of what is wrong with a user's code."""
    return ConfigError(list(map(_of_trouble, refused)))


def _of_trouble(trouble: Trouble) -> Fault:
    flag, _, value = trouble.flag.partition(" " if trouble.flag.startswith("--") else "=")
    place = "this line" if f"({trouble.place})" in trouble.problem else trouble.place
    problem, remedy = map(in_python, (trouble.problem, trouble.advice(place)))
    if flag.startswith("--"):
        given = None if value == IN_PYTHON else value or None
        return Fault(trouble.argument, given, problem, remedy)
    return Fault(trouble.argument, None, f"{value}: {problem}" if value else problem, remedy)


def of_run(sentence: str) -> ConfigError:
    """Return the error of a run's last sentence, which alone says what is wrong."""
    return ConfigError([of_sentence(sentence)])


def of_sentence(sentence: str) -> Fault:
    """Return the fault that a whole sentence tells. Its path is the first argument in it.

    `--flag VALUE: PROBLEM. REMEDY` has all parts; of any other sentence, all is the problem.
    """
    if whole := SENTENCE.fullmatch(sentence):
        problem, remedy = map(in_python, (whole["problem"], whole["remedy"]))
        return Fault(whole["flag"], whole["value"], problem, remedy)
    first = re.search(r"--([A-Za-z_][\w.]*)|\b(reward|environment)=", sentence)
    path = (first[1] or first[2]) if first else ""
    return Fault(path, None, in_python(sentence), "")
