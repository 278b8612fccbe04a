"""`rotate-token`: another token for the control port of a run that goes on."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.options import ParseError
from contract.run_dir import RunFiles
from entrypoint.cluster.access import TOKEN
from entrypoint.commands.arguments import addresses
from entrypoint.commands.head_client import NoAnswerError, ask
from entrypoint.commands.named_run import GIVE_A_RUN, lack, meant
from entrypoint.config import parsers
from entrypoint.config.settings import Settings

ANSWER_SECONDS = 60.0
"""The head waits for its workers, and for its storage."""
LONGEST = 2**16


def rotate_token(settings: Settings, options: argparse.Namespace) -> int:
    """Have the head change its token; say who has the new one, and what keeps the old one.

    Raises NoAnswerError.
    """
    settings = _of_run(settings, options.run)
    body = {} if options.token_file is None else {"token": _read(options.token_file)}
    row = ask(settings, "POST", TOKEN, json=body, timeout=ANSWER_SECONDS)
    if options.json:
        print(json.dumps(row))
        return ExitCode.FINISHED
    told, late = (", ".join(row[name]) for name in ("told", "not_told"))
    print(f"the run has a new token, and the old one opens nothing; {told or 'no worker'} has it")
    if late:
        print(f"not in time: {late}: each joins again with the new token, or ends")
    if row["is_given"]:
        print("on every node, set ROLLCALL_TOKEN to the new token before the node starts again")
    print(
        "links, browsers and scrapers need new keys (rollcall open), unless they were given\n"
        "Ray and the reward and retrieval servers keep what they had until the head starts again"
    )
    return ExitCode.FINISHED


def _of_run(settings: Settings, run: str | None) -> Settings:
    """Return the settings for the run that is named. Raises NoAnswerError."""
    if run is None:
        return settings
    if Path(run).is_dir():
        path = meant(Path(run)).absolute()
        if RunFiles(path).journal.exists():
            return replace(settings, run_dir=path)
        raise NoAnswerError(lack(run), ExitCode.USAGE)
    try:
        return replace(settings, urls=tuple(addresses(run).split(",")))
    except argparse.ArgumentTypeError as error:
        sentence = f"{error}; nor is it a directory: {GIVE_A_RUN}"
        raise NoAnswerError(sentence, ExitCode.USAGE) from None


def _read(file: str) -> str:
    """Return the token in a file, or on standard input. Raises NoAnswerError."""
    try:
        if file == "-":
            text = sys.stdin.read(LONGEST)
        else:
            with Path(file).open() as opened:
                text = opened.read(LONGEST)
        return parsers.token(text.strip()).reveal()
    except ParseError as error:
        sentence = f"--token-file {file}: what it has {error}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        sentence = f"--token-file {file}: {reason}"
    raise NoAnswerError(sentence, ExitCode.USAGE)
