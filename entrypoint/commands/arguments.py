"""The arguments of the commands; a wrong one exits with 64 and names the nearest right one."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from contract.exit_codes import ExitCode
from contract.launch import distribution
from contract.options import MISTYPED, ParseError, did_you_mean, nearest
from contract.redaction import redact_here
from entrypoint.cluster.access import DUTIES, Access
from entrypoint.commands import cli, pasted
from entrypoint.commands.examples import shown
from entrypoint.commands.named_run import lack, not_a_run, run_at, with_run
from entrypoint.config import durations, parsers
from entrypoint.job.recipes.base import UnknownFlag

JOB = "the id or the name of a submitted job, as `list` shows it"
RUN = "or the directory of a run"
NAMES = "a node, a log such as attempt-1, or a job's id; none: all, with -f the job's output. "
NAMES += "A run's directory may come first"
NAME_OF_RUN = "the run's name on its page, in the report and in lists"
EPILOG = """Settings come from the environment; `rollcall plan` shows them. The project's
docs/reference.md has every command, variable and exit code."""


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.exit(message=f"{version()}\n")


def version() -> str:
    from importlib import metadata  # 20 ms, which no other command needs

    return f"rollcall {metadata.version(distribution.NAME)}"


class Help(argparse.HelpFormatter):
    """Breaks no flag at its hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        words = " ".join(text.split())
        return textwrap.indent(
            textwrap.fill(words, width - len(indent), break_on_hyphens=False), indent
        )


class Parser(argparse.ArgumentParser):
    """Exits with 64 on a usage error, as all commands do; says so in JSON if JSON is asked for."""

    def __init__(self, command: str, summary: str | None, **options: Any) -> None:
        super().__init__(
            prog=f"rollcall {command}",
            description=summary,
            epilog=EPILOG,
            allow_abbrev=False,
            formatter_class=Help,
            **options,
        )
        self._as_json = False
        self.add_argument("--version", action=_Version, nargs=0, help="print the version")

    def format_help(self) -> str:
        return super().format_help() + shown(self.prog.removeprefix("rollcall "))

    def parse(self, words: Sequence[str], hint: str = "") -> argparse.Namespace:
        """Return the arguments. Exits if they are wrong; `hint` follows an unknown argument."""
        self._as_json = cli.wants_json(["", *words])
        options, others = self.parse_known_args(list(words))
        if others:
            self.error(f"unknown argument {' '.join(others)}{self._near(others[0]) or hint}")
        return options

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [*map(str, action.choices)]
            instead = did_you_mean(str(value), known, f"give one of {', '.join(known)}")
            raise argparse.ArgumentError(action, f"{value} is unknown: {instead}")

    def error(self, message: str) -> NoReturn:
        code = fail(f"{self.prog}: {message}", ExitCode.USAGE, as_json=self._as_json)
        self.exit(code, f"see `{self.prog} --help`\n")

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def _near(self, word: str) -> str:
        """Return the question whether a flag was meant that resembles `word`."""
        flags = self.flags if word.startswith("-") else []
        if len(word) == 2 and word.swapcase() in flags:
            return f": did you mean {word.swapcase()}?"
        return did_you_mean(word.partition("=")[0], flags, begin=": ", cutoff=MISTYPED)


def fail(sentence: str, code: int, *, as_json: bool) -> int:
    """Say on standard error why a command fails, and in JSON on standard output; return `code`."""
    shown = redact_here(sentence)
    print(shown, file=sys.stderr)
    if as_json:
        print(json.dumps({"error": shown, "exit_code": int(code)}))
    return code


def hinted(faults: Sequence[str], command: str) -> list[str]:
    """Return a job's faults; of a flag that no job has, with the flag of the command it means."""
    own = parser(command).flags
    return [_hint(fault, own) if isinstance(fault, UnknownFlag) else fault for fault in faults]


def _hint(fault: UnknownFlag, own: Sequence[str]) -> str:
    if fault.flag in own:
        return f"{fault.flag}: unknown flag of the job. `rollcall` has it: give it before the job"
    near = nearest(fault.flag, own, cutoff=MISTYPED)
    return f"{fault.flag}: unknown flag. Did you mean {near}?" if near else fault


NEEDED: Mapping[str, Access] = {
    **dict.fromkeys(cli.REMOTE, Access.READ),
    "stop": Access.OPERATE,
    "submit": Access.SUBMIT,
    "pipeline": Access.SUBMIT,
    "rotate-token": Access.ALL,
}
"""The weakest key with which a command does all that it does."""


def parser(command: str) -> Parser:
    """Return the parser of one of `COMMANDS`."""
    summary = cli.COMMANDS[command]
    if need := NEEDED.get(command):
        stronger = "" if need is Access.ALL else ", or a stronger one"
        summary += f". It needs {need.key}{stronger}: ROLLCALL_TOKEN has it, or the run directory."
    made = Parser(command, summary)
    if command not in ("up", "completion"):
        made.add_argument("--json", action="store_true", help="print JSON, also of a failure")
    if command in cli.REMOTE:
        made.add_argument(
            "--address",
            metavar="URL",
            type=addresses,
            help="the head's control port, such as http://HOST:8267; more after commas are other "
            "nodes' (default: ROLLCALL_URL)",
        )
    COMMANDS[command](made)
    return made


def parse(command: str, words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command that asks a head. Exits with 64 if they are wrong."""
    own = parser(command)
    if command != "submit":
        return with_run(own.parse(words))
    given, job = _at_dashes(words)
    options = own.parse(given, hint="; the job's words come after --")
    options.words = [*options.words, *job]
    if not options.words:
        own.error("no job is given: rollcall submit -- python train.py")
    if wrong := pasted.of_cluster(options.words, cli.COMMANDS):
        own.error(wrong)
    return with_run(options)


def _at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split at the first `--`."""
    place = words.index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


def lines(text: str) -> int:
    """Return a number of lines, from 0. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines, such as 100")
    return int(text)


def moment(text: str) -> datetime:
    """Return a time: `10m` ago, or an ISO time, in local time if it has no zone.

    Raises ArgumentTypeError.
    """
    try:
        return datetime.now().astimezone() - timedelta(seconds=durations.time_limit(text))
    except ParseError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        problem = f"{text!r} is not a time: give 90s, 10m or 2h ago, or 2026-01-31T18:00"
        raise argparse.ArgumentTypeError(problem) from None


def seconds(text: str) -> float:
    """Return the seconds of a duration. Raises ArgumentTypeError."""
    try:
        return durations.time_limit(text)
    except ParseError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def job(text: str) -> str:
    """Return a job's id or name. Raises ArgumentTypeError: an empty word is not the whole run."""
    if _is_job(text):
        return text
    problem = f"{text!r} is not a job's id, such as job-1, or its name: `rollcall list` shows them"
    raise argparse.ArgumentTypeError(not_a_run(text) or problem)


def job_or_run(text: str) -> Path | str:
    """Return a run's directory; a job's id or name if no directory of this name has a run."""
    return run_at(text) or job(text)


def name_or_run(text: str) -> str:
    """Return a name, or the path of a run. Raises ArgumentTypeError for another path."""
    if problem := not_a_run(text):
        raise argparse.ArgumentTypeError(problem)
    return text


def run(text: str) -> Path:
    """Return a run's directory. Raises ArgumentTypeError."""
    if found := run_at(text):
        return found
    raise argparse.ArgumentTypeError(lack(text))


def path_or_job(text: str) -> Path | str:
    """Return a path; a job's id or name if nothing here has it as a path."""
    return text if _is_job(text) and not os.path.lexists(text) else Path(text)


def _is_job(text: str) -> bool:
    return re.fullmatch(rf"[\w-]+|{parsers.RUN_NAME}", text, re.ASCII) is not None


def addresses(text: str) -> str:
    """Return URLs of control ports with commas between them, of the head's and other nodes'.

    `HOST:8267` is one, too. Raises ArgumentTypeError.
    """
    return ",".join(_address(one.strip()) for one in text.split(","))


def _address(text: str) -> str:
    is_url = "://" in text
    try:
        url = parsers.url(text if is_url else f"http://{text}")
        if is_url or urlsplit(url).port is not None:
            return url
    except ParseError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is not an address of a head, such as http://HOST:8267"
    )


def run_name(text: str) -> str:
    """Return a run's name. Raises ArgumentTypeError."""
    try:
        return parsers.run_name(text)
    except ParseError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def port(text: str) -> int:
    """Return a port's number. Raises ArgumentTypeError."""
    try:
        return parsers.port(text)
    except ParseError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _job(parser: argparse.ArgumentParser, otherwise: str) -> None:
    what = f"{JOB}, {RUN}; none: {otherwise}"
    parser.add_argument("job", nargs="?", type=job_or_run, metavar="JOB|RUN", help=what)


def _pieces(parser: argparse.ArgumentParser, of: str) -> None:
    """What the commands take that show something which grows."""
    add = parser.add_argument
    add("--follow", "-f", action="store_true", help=f"show new {of} as they come, until the end")
    add("--lines", "-n", type=lines, metavar="N", help=f"only the last N {of}")
    add(
        "--since", type=moment, metavar="WHEN", help=f"only {of} from then: 10m, 2h, or an ISO time"
    )


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait-for-jobs", action="store_true", help="no job yet: `rollcall submit` brings jobs"
    )
    parser.add_argument("--name", type=run_name, help=NAME_OF_RUN)
    parser.add_argument(
        "--no-code",
        action="store_true",
        help="do not run the job's reward function and environment on the first rows of the data",
    )
    parser.add_argument("words", nargs="*", metavar="JOB", help="flags of the job, or a program")


def _plan(parser: argparse.ArgumentParser) -> None:
    _up(parser)
    for flag, (value, meaning) in cli.CLUSTER_FLAGS.items():
        parser.add_argument(flag, metavar=value, help=meaning)
    cost = "also estimate the seconds of a step, and what takes them"
    parser.add_argument("--cost", action="store_true", help=cost)


def _nothing(parser: argparse.ArgumentParser) -> None:
    return


def _list(parser: argparse.ArgumentParser) -> None:
    what = "the directory of the cluster's run; none: as for other commands"
    parser.add_argument("job", nargs="?", type=run, metavar="RUN", help=what)


def _status(parser: argparse.ArgumentParser) -> None:
    _job(parser, "the run")
    parser.add_argument("--watch", action="store_true", help="show every change, until the end")


def _stop(parser: argparse.ArgumentParser) -> None:
    _job(parser, "the whole cluster")


def _wait(parser: argparse.ArgumentParser) -> None:
    _job(parser, "the run")
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="at most so long: 90s, 2h")


def _open(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "a run's directory, or one with runs: the page reads it; none: the page of the head"
    what += f"; a word that is no path here: {JOB}"
    add("path", nargs="?", type=path_or_job, metavar="RUN", help=what)
    add("--port", type=port, default=0, help="of the page of RUN, on 127.0.0.1; none: a free one")
    add("--control", action="store_true", help="with a key that lets the page stop the run")
    what = "print a key alone: read (the default), as for Prometheus, operator or submit"
    add("--key", nargs="?", const="read", choices=tuple(DUTIES), metavar="DUTY", help=what)
    add("--no-browser", action="store_true", help="only print the link")


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", type=name_or_run, metavar="NAME", help=NAMES)
    _pieces(parser, "lines")
    what = "Ray's own logs, and its own lines at the beginning of the job's, too"
    parser.add_argument("--all", action="store_true", help=what)


def _events(parser: argparse.ArgumentParser) -> None:
    _job(parser, "the run")
    _pieces(parser, "events")


def _submit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", type=run_name, help=NAME_OF_RUN)
    parser.add_argument("--no-wait", action="store_true", help="print the job's id, and end")
    parser.add_argument("--working-dir", metavar="DIR", help="is copied to all nodes")
    environment = parser.add_mutually_exclusive_group()
    environment.add_argument("--runtime-env", metavar="FILE", help="Ray's runtime_env as YAML")
    environment.add_argument("--runtime-env-json", metavar="JSON", help="the same as JSON")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- JOB", help="a program, or builtin flags"
    )


def _pipeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="print the jobs' ids, and end")
    parser.add_argument("file", metavar="FILE", help="YAML with the stages, in their order")


def _rotate_token(parser: argparse.ArgumentParser) -> None:
    what = "the run's directory, or the head's address; none: as for other commands"
    parser.add_argument("run", nargs="?", metavar="RUN|URL", help=what)
    what = "has the new token; -: standard input; not given: the head makes one in its RUN/.token"
    parser.add_argument("--token-file", metavar="FILE", help=what)


COMMANDS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "up": _up,
    "plan": _plan,
    "doctor": _nothing,
    "completion": _nothing,
    "submit": _submit,
    "pipeline": _pipeline,
    "list": _list,
    "status": _status,
    "wait": _wait,
    "open": _open,
    "logs": _logs,
    "events": _events,
    "stop": _stop,
    "rotate-token": _rotate_token,
}
