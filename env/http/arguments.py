"""Command lines that end with the product's exit code for wrong usage, 64, and one line."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NoReturn

from env.http.batching import Limits


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that are something, and breaks no flag at its hyphens."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        words = " ".join(text.split())
        return textwrap.indent(
            textwrap.fill(words, width - len(indent), break_on_hyphens=False), indent
        )


class Parser(argparse.ArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments. Exits if one is unknown, and names the nearest flag."""
        words = sys.argv[1:] if args is None else [*args]
        for word in words:  # first of all, as it is why another flag is missing
            if hint := self._near(word):
                self.error(f"unknown argument {word}{hint}")
        options, others = self.parse_known_args(words, namespace)
        if others:
            self.error(f"unknown argument {' '.join(others)}")
        return options

    def _near(self, word: str) -> str:
        """Return the question whether a flag was meant that resembles a word; "" if it is one."""
        flag, known = word.partition("=")[0], list(_flags(self))
        if flag[:2] != "--" or any(one.startswith(flag) for one in known):
            return ""
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.75)
        return f": did you mean {near[0]}?" if near else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            near = difflib.get_close_matches(str(value), map(str, action.choices), n=1)
            known = ", ".join(map(str, action.choices))
            instead = f"did you mean {near[0]}?" if near else f"give one of {known}"
            raise argparse.ArgumentError(action, f"{value} is unknown: {instead}")

    def error(self, message: str) -> NoReturn:
        self.exit(os.EX_USAGE, f"{self.prog}: {message}\n")


def sub_command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a sub-command whose help shows the defaults."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        formatter_class=Help,
    )
    return parser


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the flags of a parser and of its sub-commands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _flags(command)


def add_limits(parser: argparse.ArgumentParser, limits: Limits, items: str, call: str) -> None:
    """Add the flags of `Limits`. `items`: what waits; `call`: what answers a batch of them."""
    option = parser.add_argument
    option("--max-batch", type=positive, default=limits.max_batch, help=f"{items} a {call}")
    option("--max-wait-ms", type=finite, default=limits.max_wait * 1000, help="to fill a batch")
    option("--max-queue", type=positive, default=limits.max_queue, help=f"{items} that wait")


def limits_of(given: argparse.Namespace) -> Limits:
    return Limits(
        max_batch=given.max_batch, max_wait=given.max_wait_ms / 1000, max_queue=given.max_queue
    )


def positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return value


def finite(text: str) -> float:
    """Return a number from 0: not NaN, and not infinity."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0")
    return value


def port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= value < 2**16:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a port, 1 to 65535 (0: any that is free)"
        )
    return value
