"""The arguments of the commands that ask a head; a wrong one exits with 64."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from contract.exit_codes import ExitCode

JOB = "the id of a submitted job, as `list` shows it"


class Parser(argparse.ArgumentParser):
    """Exits with 64 on a usage error, as all commands do."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def parse(command: str, words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of one of `COMMANDS`. Exits with 64 if they are wrong."""
    parser = Parser(prog=f"rollcall {command}", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--address",
        metavar="URL",
        help="the head's control port, such as http://HOST:8267 (default: ROLLCALL_URL)",
    )
    COMMANDS[command](parser)
    given, job = _at_dashes(words) if command == "submit" else (list(words), [])
    options, others = parser.parse_known_args(given)
    if others:
        hint = "; the job's words come after --" if command == "submit" else ""
        parser.error(f"unknown argument {' '.join(others)}{hint}")
    if command == "submit":
        options.words = [*options.words, *job]
        if not options.words:
            parser.error("no job is given: rollcall submit -- python train.py")
    return options


def _at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split at the first `--`."""
    place = words.index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help=JOB)
    parser.add_argument("--watch", action="store_true", help="show every change, until the end")


def _stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help=f"{JOB}; none: the whole cluster")


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a node, a log such as attempt-1, or a job's id"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="show new lines as they come")


def _list(parser: argparse.ArgumentParser) -> None:
    return


def _submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="print the job's id, and end")
    parser.add_argument("--working-dir", metavar="DIR", help="brought to all nodes of the cluster")
    environment = parser.add_mutually_exclusive_group()
    environment.add_argument("--runtime-env", metavar="FILE", help="Ray's runtime_env as YAML")
    environment.add_argument("--runtime-env-json", metavar="JSON", help="the same as JSON")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- JOB", help="a program, or builtin flags"
    )


COMMANDS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "status": _status,
    "logs": _logs,
    "stop": _stop,
    "submit": _submit,
    "list": _list,
}
