"""Finds the command of another trainer among a script's commands, and reads its flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath

from contract.launch.command_lines import ASSIGNMENT, OPENRLHF_PPO, OPENRLHF_STAGE, PASSED_ON
from contract.options import MISTYPED, did_you_mean
from trainer.config.config import Config
from trainer.config.read_flags import aliases
from trainer.config.translate import python_script, shell
from trainer.config.translate.bash.state import Unknown
from trainer.config.translate.python_source import fault
from trainer.config.translate.ray_environment import of_ray
from trainer.config.translate.rows import UNSET, Command
from trainer.config.translate.trl import TRL as TRL_TABLE
from trainer.config.translate.trl import VARIABLES

OPENRLHF, VERL, TRL = "openrlhf", "verl", "trl"
TRAINERS = {OPENRLHF: "OpenRLHF", VERL: "verl", TRL: "TRL"}
"""By what --from calls them."""
PROGRAMS = (
    (OPENRLHF, OPENRLHF_PPO),
    (
        VERL,
        re.compile(
            r"verl\.trainer\.main_ppo|(.*/)?main_ppo\.py|([\w.]+\.)?main_dapo|(.*/)?main_dapo\.py"
        ),
    ),
    (TRL, re.compile(r"trl\.scripts\.grpo|(.*/)?\w*grpo\w*\.py")),
)
TRL_PROGRAM = re.compile(rf"(?:[^=]*/)?trl|{UNSET}\((?:which|command -v) trl\)")
"""The program, also by its path, or as a shell looks it up."""
TRL_STAGES = {"trl sft": "sft", "trl dpo": "dpo", "trl reward": "rm"}
"""Commands of TRL → the stage of Rollcall that trains the same."""
OF_STAGES = (
    "Its --model_name_or_path, --dataset_name and --output_dir are --pretrain, --dataset and "
    "--save_path there"
)
"""What TRL's first flags are called by those stages."""
OF_TRL = ("grpo", "sft", "dpo", "reward", "rloo", "kto", "env", "vllm-serve")
"""Commands of TRL."""
VERL_SFT = re.compile(r"verl\.(trainer\.)?\w*sft\w*(\.\w+)*")
OTHERS = re.compile(
    rf"openrlhf\.cli\.(train_\w+|serve_\w+)|trl\.scripts\.\w+|{VERL_SFT.pattern}"
    r"|torchtune|llamafactory-cli"
)
"""Programs of these projects that are not PPO or GRPO."""
RELATIVES = re.compile(r"(verl|recipe)(\.\w+)*\.\w*main\w*|(.*/)?\w*main_(ppo|grpo)\w*\.py")
"""Programs on verl's code with keys of their own, such as its asynchronous trainers."""
DAPO = (
    "what it adds to main_ppo is here --dynamic_filtering (filter_groups), --overlong_buffer_len "
    "(overlong_buffer_cfg) and --eps_clip_low_high (clip_ratio_high)"
)
RELATED = (
    (re.compile(r".*(async|one_step_off).*"),
     "Generation beside the training is --async_train here, with --max_staleness"),
    (re.compile(r".*eval.*"), "Held-out prompts are scored while it trains: --eval_dataset"),
    (re.compile(r".*"), "As far as known, no flag of Rollcall does what it adds"),
)  # fmt: skip
"""Such a program's name → what does the same here."""
SET = re.compile(r"(?:^|[\s;(])([A-Za-z_]\w*)\+?=")
"""An assignment, in a script that is read in parts."""
REMOTE = {"docker", "podman", "ssh", "singularity", "apptainer", "kubectl"}
"""Programs that do not hand their own environment to what they run."""
LETTER = re.compile(r"-[A-Za-z]")
"""A switch of one letter before the program, as in `accelerate launch -m`."""
OVERRIDE = re.compile(r"(?:\+{0,2}|~)(?P<key>[A-Za-z_][\w./@]*)=(?P<value>.*)", re.DOTALL)


class TranslateError(ValueError):
    """Why nothing can be translated; the text says what would be right."""


def of_words(words: Sequence[str], trainer: str = "") -> Command:
    """Return the command that `words` are. Raises TranslateError."""
    if len(words) == 1 and _program_in(words[0].split()):
        return of_script(words[0], {}, trainer)  # the whole command in quotes
    found = _command(list(words), trainer)
    if found is None:
        raise TranslateError(_why_none([list(words)], trainer))
    return found


def of_script(
    text: str, variables: Mapping[str, str], trainer: str = "", number: int | None = None,
    place: shell.Place | None = None,
) -> Command:  # fmt: skip
    """Return a script's one command of a trainer, or the numbered one. Raises TranslateError."""
    scripts = [*_with_inner(_read(text, variables, place), variables)]
    found = [
        _of_script(one, script)
        for script in scripts
        for words in script.commands
        if (one := _command(words, trainer, bare=False))
    ]
    commands = [words for script in scripts for words in script.commands]
    if not found and len(commands) == 1:
        one = _command(commands[0], trainer)
        found = [_of_script(one, scripts[-1])] if one else []
    if not found:
        raise TranslateError(_why_none(commands, trainer) + _why_ended(scripts[0]))
    if number is not None and not 1 <= number <= len(found):
        raise TranslateError(f"--number {number}: the script has the commands 1 to {len(found)}")
    if number is not None:
        return found[number - 1]
    if any(one != found[0] for one in found):
        named = ", ".join(one.program for one in found)
        raise TranslateError(
            f"the script has {len(found)} commands ({named}): choose one, as in --number 1"
        )
    return found[0]


def _read(
    text: str, variables: Mapping[str, str], place: shell.Place | None = None
) -> shell.Script:
    """Read a script; of one that cannot be read, its command alone. Raises TranslateError."""
    try:
        return shell.read(text, variables, place)
    except shell.ScriptSyntaxError as error:
        paragraphs = [one for one in re.split(r"\n[ \t]*\n", text) if _program_in(one.split())]
        if len(paragraphs) == 1 and paragraphs[0] != text:
            why = f"the whole cannot be read ({error})"
            with suppress(shell.ScriptSyntaxError):
                lost = dict.fromkeys(SET.findall(text), why)
                read = shell.read(paragraphs[0], variables, place, lost)
                return replace(read, notes=(*read.notes, f"{why}: its command alone is read"))
        remedy = ". If bash takes this line, put quotes around its words that have brackets, or "
        remedy += "give the trainer's command alone, after --"
        raise TranslateError(f"{error}{remedy if error.line else ''}") from None


def _of_script(command: Command, script: shell.Script) -> Command:
    """Return the command with what its script says of it."""
    kept = (one for one in script.exported if one not in script.used or one.startswith(PASSED_ON))
    exported = tuple(dict.fromkeys((*command.exported, *kept)))
    words = [word for texts in command.given.values() for word in texts]
    missing = script.missing([*words, *command.given, *command.strange, command.program])
    needed = {name: _needed(name, why) for name, why in missing.items()}
    made = replace(command, exported=exported, missing=needed, notes=script.notes)
    if command.trainer != TRL:
        return made
    variables = {name: (script.exported[name],) for name in VARIABLES if name in script.exported}
    return replace(made, given=variables | dict(command.given))


def _needed(name: str, unknown: Unknown) -> str:
    """Return a sentence on a value that the script does not tell by itself."""
    why = unknown.sentence
    if name.isdecimal() and unknown.ask:  # a function's argument
        name, why = unknown.ask[0], unknown.why
    if name.isidentifier():
        return f"{name}: give it by --set {name}=VALUE. {why[:1].upper()}{why[1:]}"
    if name.isdecimal():
        return f"${name}: give the arguments by --argument VALUE. {why[:1].upper()}{why[1:]}"
    return f"${name}: put its value into the script. {why[:1].upper()}{why[1:]}"


def _with_inner(script: shell.Script, variables: Mapping[str, str]) -> Iterator[shell.Script]:
    """Yield the script, and those that `bash -c "…"` and the like have as one word."""
    yield script
    for words in script.commands:
        for word in words:
            if any(char.isspace() for char in word.strip()) and _program_in(word.split()):
                elsewhere = {PurePath(one).name for one in words} & REMOTE
                given = variables if elsewhere else {**script.exported, **variables}
                text = word.replace(UNSET, "$")
                inner = _read(text, {**given, **_arguments(words, word)})
                asked = {**script.asked, **inner.asked}
                yield from _with_inner(replace(inner, asked=asked), variables)


def _arguments(words: Sequence[str], script: str) -> dict[str, str]:
    """Return the arguments of `bash -c "…" NAME argument …`, by their places."""
    behind = words[list(words).index(script) + 2 :]
    return {str(place): word for place, word in enumerate(behind, 1)}


def _why_ended(script: shell.Script) -> str:
    if not script.ended:
        return ""
    return (
        f". The script ends at line {script.ended}: give what it asks for by --set NAME=VALUE, its "
        "arguments by --argument VALUE"
    )


def _program_in(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the trainer and the place of its program; None if there is none."""
    for place, word in enumerate(words):
        for trainer, program in PROGRAMS:
            if program.fullmatch(word):
                return trainer, place
        if TRL_PROGRAM.fullmatch(word) and words[place + 1 : place + 2] == ["grpo"]:
            return TRL, place + 1
    for place, word in enumerate(words):
        if word.endswith(".py") and python_script.is_grpo(word, _flags(words[place + 1 :])[0]):
            return TRL, place
    return None


def _command(words: list[str], wanted: str, *, bare: bool = True) -> Command | None:
    """Return the command; None if it is not a trainer's. `bare`: flags alone may be a command."""
    found = _program_in(words)
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    if wanted and (_seems(words) not in ("", wanted) or (found is None and _is_other(words))):
        return None
    if found is None and wanted == TRL and scripts:
        found = TRL, scripts[0]
    if found is None:
        trainer = wanted or (_of_flags(words) if bare else "")
        if not trainer or not bare:
            return None
        before, program, rest = [], "", words
    else:
        trainer, place = found
        trainer = wanted or trainer
        before, program, rest = words[:place], words[place], words[place + 1 :]
        before = before[: -1 if before and TRL_PROGRAM.fullmatch(before[-1]) else None]
    exported = tuple(match[1] for word in before if (match := ASSIGNMENT.fullmatch(word)))
    variables, first = of_ray(before)
    exported += variables
    if trainer == VERL:
        given, strange = _overrides(rest)
        idle = (f"{program}: {DAPO}",) if "main_dapo" in program else ()
        made = Command(VERL, given, strange, program=program, exported=exported, idle=idle)
        return replace(made, first=first)
    given, strange = _flags(rest)
    if why := fault(program) if trainer == TRL and program.endswith(".py") else "":
        raise TranslateError(why)
    if trainer != TRL:
        return Command(trainer, given, strange, {}, program, exported, first=first)
    assigned = [match for word in before if (match := ASSIGNMENT.fullmatch(word))]
    given |= {one[1]: (one[2],) for one in assigned if one[1] in VARIABLES}
    launcher = _flags([f"-{word}" if LETTER.fullmatch(word) else word for word in before])[0]
    return Command(trainer, given, strange, launcher, program, exported, first=first)


def _seems(words: Sequence[str]) -> str:
    """Return the trainer whose command the words surely are; "" if that is not clear.

    A module tells it, and the text of a Python script; else the form and the names of the flags.
    """
    found = _program_in(words)
    if found and not words[found[1]].endswith(".py"):
        return found[0]
    if found and python_script.is_grpo(words[found[1]], ()):
        return TRL
    rest = words[found[1] + 1 :] if found else words
    names = {word[2:].partition("=")[0].replace("-", "_") for word in rest if word[:2] == "--"}
    names = {name for name in names if not name.startswith("config_")}
    keys = [match["key"] for word in rest if (match := OVERRIDE.fullmatch(word))]
    if any("." in key for key in keys):
        return "" if names else VERL
    rows = TRL_TABLE.rows
    theirs, ours = names & {row.theirs for row in rows}, names & set(aliases(Config))
    if bool(theirs - ours) == bool(ours - theirs):
        return ""
    return TRL if theirs - ours else OPENRLHF


def _is_other(words: Sequence[str]) -> bool:
    """Whether the words run a program of these projects that is not PPO or GRPO."""
    named = any(OTHERS.fullmatch(word) for word in words)
    of_trl = any(TRL_PROGRAM.fullmatch(one) and name in OF_TRL for one, name in pairwise(words))
    scripts = (word for word in words if word.endswith(".py"))
    return named or of_trl or any(python_script.other_trainer(one)[0] for one in scripts)


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


def _why_not(commands: Sequence[Sequence[str]], wanted: str) -> str:
    """Return whose command it seems to be, if not that of --from; "" if that is not clear."""
    trained = [words for words in commands if _program_in(words)]
    for words in trained or (commands if len(commands) == 1 else []):
        seems = _seems(words)
        if wanted and seems not in ("", wanted):
            found = _program_in(words)
            what = words[found[1]] if found else next(iter(words), "")
            return (
                f"--from {wanted}: {what} seems to be a command of {TRAINERS[seems]}, not of "
                f"{TRAINERS[wanted]}. Give --from {seems}, or leave --from out"
            )
    return ""


def _why_script(script: str, words: Sequence[str]) -> str:
    """Return why a Python script is not translated."""
    typed = shlex.join(words).replace(UNSET, "$")
    if why := fault(script):
        return why
    other, stage = python_script.other_trainer(script)
    if not other:
        return (
            f"{script}: neither its flags nor its text have what TRL's GRPO has. It runs as it is: "
            f"`rollcall up {typed}` (docs/from-trl.md). If it is GRPO all the same, add --from trl"
        )
    instead = f", or write the flags of `rollcall {stage}` (docs/supervised.md)" if stage else ""
    return (
        f"{script} builds a {other}, and only GRPOTrainer is translated. Run it as it is: "
        f"`rollcall up {typed}` (docs/recipes/trl.md){instead}"
    )


def _why_none(commands: Sequence[Sequence[str]], wanted: str) -> str:
    if why := _why_not(commands, wanted):
        return why
    others = [word for words in commands for word in words if OTHERS.fullmatch(word)]
    pairs = (pair for words in commands for pair in pairwise(words))
    others += [f"trl {name}" for program, name in pairs if PurePath(program).name == "trl"]
    inner = [found[0] for words in commands for w in words if (found := OTHERS.search(w))]
    relatives = [word for words in commands for word in words if RELATIVES.fullmatch(word)]
    what = (
        "give the command of OpenRLHF's train_ppo_ray, verl's main_ppo or TRL's GRPO, after -- or "
        "in a shell script"
    )
    if relatives and not others:
        return (
            f"{relatives[0]} is another program than verl's main_ppo, and has keys of its own. "
            f"{next(hint for name, hint in RELATED if name.fullmatch(relatives[0]))}. Run it as it "
            "is (docs/recipes/verl.md), or give the keys of main_ppo alone after --"
        )
    named = next(iter([*others, *inner]), "")
    mistyped = named.removeprefix("trl ")
    if named != mistyped and mistyped not in OF_TRL:
        hint = did_you_mean(mistyped, OF_TRL, begin=": ", cutoff=MISTYPED)
        if hint:
            return f"trl has no command {mistyped}{hint}"
    scripts = [(word, words) for words in commands for word in words if word.endswith(".py")]
    if scripts and not named:
        return _why_script(*scripts[0])
    if stage := OPENRLHF_STAGE.search(named):
        return (
            f"{named} is not a command of PPO or GRPO: give its flags as they are to "
            f"`rollcall {stage[1]}` (docs/supervised.md)"
        )
    if of_trl := TRL_STAGES.get(named):
        return (
            f"{named} is not a command of PPO or GRPO. Run it as it is, by `rollcall up -- {named} "
            f"…` (docs/recipes/trl.md), or write the flags of `rollcall {of_trl}` "
            f"(docs/supervised.md). {OF_STAGES}"
        )
    if VERL_SFT.fullmatch(named):
        return (
            f"{named} is not a command of PPO or GRPO. Run it as it is by the recipe verl-sft "
            "(docs/recipes/verl.md), or write the flags of `rollcall sft` (docs/supervised.md)"
        )
    if named:
        return (
            f"{named} is not a command of PPO or GRPO: the builtin trainer has no such command. "
            f"Run it as it is by a recipe (docs/recipes), or {what}"
        )
    return f"there is no command of a trainer: {what}"
