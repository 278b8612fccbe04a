"""Command lines that end with the product's exit code for wrong usage, 64, and one line."""

from __future__ import annotations

import argparse
import os
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(os.EX_USAGE, f"{self.prog}: {message}\n")


def sub_command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a sub-command whose help shows the defaults."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    return parser


def positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1")
    return value


def port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= value < 2**16:
        raise argparse.ArgumentTypeError(f"'{text}' is no port, 1 to 65535 (0: any that is free)")
    return value
