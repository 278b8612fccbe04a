"""Finds the command of another trainer among a script's commands, and reads its flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from trainer.config.config import Config
from trainer.config.given import aliases
from trainer.config.translate import shell

OPENRLHF, VERL, TRL = "openrlhf", "verl", "trl"
TRAINERS = (OPENRLHF, VERL, TRL)
PROGRAMS = (
    (OPENRLHF, re.compile(r"openrlhf\.cli\.train_ppo(_ray)?|(.*/)?train_ppo(_ray)?\.py")),
    (VERL, re.compile(r"verl\.trainer\.main_ppo|(.*/)?main_ppo\.py|([\w.]+\.)?main_dapo")),
    (TRL, re.compile(r"trl\.scripts\.grpo|(.*/)?\w*grpo\w*\.py")),
)
OTHERS = re.compile(
    r"openrlhf\.cli\.(train_\w+|serve_\w+)|trl\.scripts\.\w+|verl\.(trainer\.)?\w*sft\w*(\.\w+)*"
    r"|torchtune|llamafactory-cli"
)
"""Programs of these projects that are no PPO or GRPO."""
RELATIVES = re.compile(r"(verl|recipe)(\.\w+)*\.\w*main\w*|(.*/)?\w*main_(ppo|grpo)\w*\.py")
"""Programs on verl's code with keys of their own, such as its asynchronous trainers."""
OVERRIDE = re.compile(r"(?:\+{0,2}|~)(?P<key>[A-Za-z_][\w./@]*)=(?P<value>.*)", re.DOTALL)


class TranslateError(ValueError):
    """Why nothing can be translated; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class Command:
    """Another trainer's command."""

    trainer: str
    given: Mapping[str, tuple[str, ...]]
    """Flag, or key of an override → its values."""
    strange: tuple[str, ...] = ()
    """Words that belong to no flag."""
    launcher: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The launcher's flags, such as --num_processes of accelerate."""
    program: str = ""
    exported: tuple[str, ...] = ()
    """Variables that the script exports."""


def of_words(words: Sequence[str], trainer: str = "") -> Command:
    """Return the command that `words` are. Raises TranslateError."""
    if len(words) == 1 and _program_in(words[0].split()):
        return of_script(words[0], {}, trainer)  # the whole command in quotes
    found = _command(list(words), trainer)
    if found is None:
        raise TranslateError(_why_none([list(words)]))
    return found


def of_script(
    text: str, variables: Mapping[str, str], trainer: str = "", number: int | None = None
) -> Command:
    """Return a script's one command of a trainer, or the numbered one. Raises TranslateError."""
    script = shell.read(text, variables)
    known = {**script.variables, **variables}
    commands = list(_with_inner(script.commands, known))
    found = [one for one in (_command(words, trainer, bare=False) for words in commands) if one]
    if not found and len(commands) == 1:
        found = [one for one in [_command(commands[0], trainer)] if one]
    if not found:
        raise TranslateError(_why_none(commands))
    if number is not None and not 1 <= number <= len(found):
        raise TranslateError(f"--number {number}: the script has the commands 1 to {len(found)}")
    if number is not None:
        found = [found[number - 1]]
    elif any(one != found[0] for one in found):
        named = ", ".join(one.program for one in found)
        raise TranslateError(
            f"the script has {len(found)} commands ({named}): choose one, as in --number 1"
        )
    if not script.exported:
        return found[0]
    one = found[0]
    return Command(
        one.trainer,
        one.given,
        one.strange,
        one.launcher,
        one.program,
        tuple(dict.fromkeys((*one.exported, *script.exported))),
    )


def _with_inner(commands: Iterable[list[str]], variables: Mapping[str, str]) -> Iterable[list[str]]:
    """Yield the commands, and those that `bash -c "…"` and the like quote as one word."""
    for words in commands:
        quoted = [word for word in words if " " in word and _program_in(word.split())]
        if not quoted:
            yield words
        for word in quoted:
            yield from _with_inner(shell.read(word, variables).commands, variables)


def _program_in(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the trainer and the place of its program; None if there is none."""
    for place, word in enumerate(words):
        for trainer, program in PROGRAMS:
            if program.fullmatch(word):
                return trainer, place
        if PurePath(word).name == "trl" and words[place + 1 : place + 2] == ["grpo"]:
            return TRL, place + 1
    return None


def _command(words: list[str], wanted: str, *, bare: bool = True) -> Command | None:
    """Return the command; None if it is no trainer's. `bare`: flags alone may be a command."""
    found = _program_in(words)
    if found is None:
        trainer = wanted or (_of_flags(words) if bare else "")
        if not trainer or not bare:
            return None
        before, program, rest = [], "", words
    else:
        trainer, place = found
        trainer = wanted or trainer
        before, program, rest = words[:place], words[place], words[place + 1 :]
    exported = tuple(match[1] for word in before if (match := shell.ASSIGNMENT.fullmatch(word)))
    if trainer == VERL:
        given, strange = _overrides(rest)
        return Command(VERL, given, strange, program=program, exported=exported)
    given, strange = _flags(rest)
    launcher = _flags(before)[0] if trainer == TRL else {}
    return Command(trainer, given, strange, launcher, program, exported)


def _of_flags(words: Sequence[str]) -> str:
    """Return the trainer whose flags the words are; "" if none."""
    if OVERRIDE.fullmatch(words[0]):
        return VERL
    names = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
    if not names or not words[0].startswith("--"):
        return ""
    ours = names & set(aliases(Config))
    return OPENRLHF if 2 * len(ours) >= len(names) else TRL


def _flags(words: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return `--name value …` and `--name=value`, and words that belong to no flag."""
    given: dict[str, tuple[str, ...]] = {}
    strange: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            given[name] = (value,) if equals else ()
        elif name:
            given[name] = (*given[name], word)
        elif word != "--":
            strange.append(word)
    return given, tuple(strange)


def _overrides(words: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    given: dict[str, tuple[str, ...]] = {}
    strange: list[str] = []
    for word in words:
        if match := OVERRIDE.fullmatch(word):
            given[match["key"]] = (match["value"],)
        elif word.strip():
            strange.append(word)
    return given, tuple(strange)


STAGE = re.compile(r"openrlhf\S*train_(sft|rm|dpo)(?:\.py)?$")
"""OpenRLHF's commands whose flags a supervised stage takes."""


def _why_none(commands: Sequence[Sequence[str]]) -> str:
    others = [word for words in commands for word in words if OTHERS.fullmatch(word)]
    inner = [found[0] for words in commands for w in words if (found := OTHERS.search(w))]
    relatives = [word for words in commands for word in words if RELATIVES.fullmatch(word)]
    what = (
        "give the command of OpenRLHF's train_ppo_ray, verl's main_ppo or TRL's GRPO, after -- or "
        "in a shell script"
    )
    if relatives and not others:
        return (
            f"{relatives[0]} is another program than verl's main_ppo, and has keys of its own. Run "
            "it as it is (docs/recipes/verl.md), or give the keys of main_ppo alone after --"
        )
    named = next(iter([*others, *inner]), "")
    if stage := STAGE.search(named):
        return (
            f"{named} is no PPO or GRPO: give its flags as they are to `rollcall {stage[1]}` "
            "(docs/supervised.md)"
        )
    if named:
        return (
            f"{named} is no PPO or GRPO: the builtin trainer has no such command. Run it as it is "
            f"by a recipe (docs/recipes), or {what}"
        )
    return f"there is no command of a trainer: {what}"
