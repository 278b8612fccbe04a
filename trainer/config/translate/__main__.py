"""`rollcall translate`: another trainer's command as one of the builtin trainer.

    rollcall translate grpo.sh
    rollcall translate python3 -m verl.trainer.main_ppo data.train_batch_size=256 …

It reads a command of verl (Hydra overrides), of OpenRLHF (flat flags, and those of 0.11) or of
TRL's GRPO (with its --config file), as it is typed or from a shell script, and runs nothing. What
follows -- is always the command. Standard
output is the command to run; standard error lists what has no counterpart, with the reason. Their
defaults that differ from ours are a part of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NoReturn

from contract.exit_codes import ExitCode
from contract.launch.shell_wrapping import SHELLS
from contract.options import MISTYPED, did_you_mean, nearest
from contract.redaction import named_secrets, redact, redact_all, secret_texts, to_copy
from trainer.config.translate import command as commands
from trainer.config.translate.accelerate_file import with_launcher_files
from trainer.config.translate.bash.open_text import is_open, pieces
from trainer.config.translate.bash.scope import Place
from trainer.config.translate.bash.syntax import BYTES
from trainer.config.translate.command import TRAINERS, TranslateError
from trainer.config.translate.config_file import with_file
from trainer.config.translate.hydra_file import with_hydra_file
from trainer.config.translate.python_script import with_script
from trainer.config.translate.result import Translation, flag_words
from trainer.config.translate.rows import UNSET, Command
from trainer.config.translate.translation import plain, translated

PROG = "rollcall translate"
LOST = 1
EXIT = """exit codes:
  0   every flag has a counterpart, or needs none; what was not seen is optional
  1   something has no counterpart, or is still to give or to change: standard error
      says what
  64  there is no such command, or a wrong argument"""
WIDTH = 96
WITH_VALUE = ("--from", "--set", "--argument", "--number")
OWN = (*WITH_VALUE, "--json", "--help", "-h")
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
PROGRAM = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed|trl")
BEHIND_EQUALS = ": give one that begins with a hyphen behind =, as in --argument=--model"
TOGETHER = "\xa0"
"""Keeps a flag and its value on one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = BEHIND_EQUALS if "expected one argument" in message else ""
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}{hint}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments. Exits if one is unknown, and names the nearest flag."""
        options, others = self.parse_known_args(args, namespace)
        if others:
            known = [flag for action in self._actions for flag in action.option_strings]
            hint = did_you_mean(others[0].partition("=")[0], known, begin=": ", cutoff=MISTYPED)
            self.error(f"unknown argument {' '.join(others)}{hint}")
        return options


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    own, command = _parted(words)
    if not command:
        own = _with_arguments(own)
    elif _runs_script(command):
        own += [command[1], *(f"--argument={word}" for word in command[2:])]
        command = []
    options = _parser().parse_args(own)
    try:
        found = _command(options, command)
        found = with_hydra_file(with_launcher_files(with_file(found)))
        made = translated(with_script(found))
    except TranslateError as error:
        return _fail(redact(str(error), _secrets(options, command)), options)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        return _fail(f"{options.script}: {reason}", options)
    secrets = _secrets(options, command)
    if options.json:
        row = {name: redact_all(value, secrets) for name, value in _row(made).items()}
        print(json.dumps(row | {"flags": to_copy(row["flags"])}, indent=2))
    else:
        print(to_copy(redact(_shown(made), secrets)))
        _tell(made, secrets)
    return ExitCode.FINISHED if made.is_whole else LOST


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of `translate` and the command, which `--` or its program begins.

    The first word that is no argument begins a command if it can be no script, and more follows
    it than arguments of `translate`.
    """
    if "--" in words:
        cut = words.index("--")
        return words[:cut], words[cut + 1 :]
    first = _foreign(words)
    word = "-" if first is None else words[first]
    if first is None or word.startswith("-") or _runs_script(words[first:]):
        return words, []
    if _foreign(words[first + 1 :]) is None:
        return words, []
    is_script = PurePath(word).suffix in SCRIPTS or (
        Path(word).is_file() and not PROGRAM.fullmatch(PurePath(word).name)
    )
    return (words, []) if is_script else (words[:first], words[first:])


def _foreign(words: Sequence[str]) -> int | None:
    """Return the place of the first word that is no flag of `translate`; None if all are."""
    place = 0
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        if name not in OWN:
            return place
        place += 1 if equals or name not in WITH_VALUE else 2
    return None


def _with_arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments of `translate`, to which those of the script are added.

    Behind the script, a word is the script's unless it is like a flag of `translate`.
    """
    first = _foreign(words)
    if first is None or words[first] == "-":
        return list(words)
    place = first + (2 if _runs_script(words[first:]) else 1)
    own = [*words[:first], words[place - 1]]
    given: list[str] = []
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        if name[:1] == "-" and nearest(name, OWN, cutoff=MISTYPED):
            end = place + (1 if equals or name not in WITH_VALUE else 2)
            own += words[place:end]
            place = end
        else:
            given.append(f"--argument={words[place]}")
            place += 1
    return own + given


def _runs_script(words: Sequence[str]) -> bool:
    """Whether the words are a shell and its script, as in `bash run.sh`."""
    return len(words) > 1 and PurePath(words[0]).name in SHELLS and words[1][:1] != "-"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        description=__doc__,
        epilog=EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "script",
        nargs="?",
        type=Path,
        metavar="SCRIPT",
        help="a shell script, or FILE.py of TRL's; - reads stdin",
    )
    add("--from", dest="trainer", choices=TRAINERS, help="whose command it is, if unclear")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable that the script takes from outside, such as SLURM_NNODES=2",
    )
    add(
        "--argument",
        action="append",
        default=[],
        metavar="VALUE",
        help="an argument of the script, as after `bash SCRIPT`",
    )
    add("--number", type=int, metavar="N", help="which command, if the script has several")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _command(options: argparse.Namespace, words: Sequence[str]) -> Command:
    """Return the command that is meant. Raises TranslateError, OSError and UnicodeDecodeError."""
    trainer = options.trainer or ""
    if bool(words) == bool(options.script):
        raise TranslateError("give one of both: a shell script, or a command")
    variables = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise TranslateError(f"--set {text}: give NAME=VALUE, as in SLURM_NNODES=2")
        variables[name] = value
    if words:
        return commands.of_words(words, trainer)
    if options.script.suffix == ".py" and options.script.is_file():
        return commands.of_words(["python3", str(options.script), *options.argument], trainer)
    if options.script.suffix in (".yaml", ".yml"):
        file = options.script
        raise TranslateError(f"{file} is no command: give trl grpo --config {file}, if it is TRL's")
    variables |= {str(place): value for place, value in enumerate(options.argument, 1)}
    if str(options.script) == "-":
        text, place = sys.stdin.read(), Place()
    else:
        text, place = options.script.read_text(errors=BYTES), Place(str(options.script))
    return commands.of_script(text, variables, trainer, options.number, place)


def _secrets(options: argparse.Namespace, words: Sequence[str]) -> frozenset[str]:
    """Return the secrets that a command or a script names, as far as they are no words."""
    text = shlex.join((*words, *options.set, *options.argument))
    with suppress(OSError):
        if options.script and options.script.is_file():
            text += f"\n{options.script.read_text(errors=BYTES)}"
    return named_secrets(text) | secret_texts(os.environ)


def _fail(sentence: str, options: argparse.Namespace) -> int:
    print(f"{PROG}: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps({"error": sentence, "exit_code": int(ExitCode.USAGE)}))
    return ExitCode.USAGE


def _shown(made: Translation) -> str:
    """Return the command for a shell, a few flags a line."""
    pieces = [f"{name}={value}" for name, value in made.environment.items()]
    lines, line = [], " ".join([*pieces, "rollcall up --"])
    for name, texts in made.flags.items():
        flag = " ".join(map(quoted, flag_words(name, texts)))
        if len(line) + len(flag) > WIDTH:
            lines.append(line)
            line = f"  {flag}"
        else:
            line = f"{line} {flag}"
    return " \\\n".join([*lines, line])


def quoted(text: str) -> str:
    """Return a word for the shell, which expands the variables that the script left open."""
    if UNSET not in text:
        return shlex.quote(text)
    shown = (
        plain(one) if is_open(one) else re.sub(r'([\\"`$])', r"\\\1", one) for one in pieces(text)
    )
    return f'"{"".join(shown)}"'


def _tell(made: Translation, secrets: frozenset[str]) -> None:
    """Say on standard error what the command does not."""
    said = (TOGETHER.join((f"--{n}", *map(plain, made.flags[n]))) for n in sorted(made.by_default))
    wrapped = textwrap.wrap(", ".join(said), WIDTH - 4, break_on_hyphens=False)
    defaults = [line.replace(TOGETHER, " ") for line in wrapped]
    for title, lines in (
        ("has no counterpart", made.lost),
        ("still to give", made.needed),
        ("to change: the trainer refuses it", made.conflicts),
        (f"added: defaults of {made.trainer} that differ here", defaults),
        ("set before it runs", made.first),
        ("not seen here; give what applies", made.unseen),
        ("warnings", made.warnings),
        ("needs nothing", made.notes),
    ):
        if lines:
            shown = (f"#   {redact(line, secrets)}" for line in lines)
            print(f"# {title}:", *shown, sep="\n", file=sys.stderr)


def _row(made: Translation) -> dict[str, object]:
    return {
        "trainer": made.trainer,
        "flags": [plain(word) for word in made.words],
        "environment": made.environment,
        "lost": made.lost,
        "needed": made.needed,
        "conflicts": made.conflicts,
        "defaults": sorted(made.by_default),
        "first": made.first,
        "unseen": made.unseen,
        "warnings": made.warnings,
        "notes": made.notes,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback
    sys.exit(main())
