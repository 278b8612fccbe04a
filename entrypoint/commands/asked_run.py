"""The run that a command asks: of its words, its variables, the node that lives here, or a find."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from entrypoint.commands import found_run, named_run, node_shell
from entrypoint.commands.node_shell import UnnamedRunError

OTHER_THINGS_NAME = "For a job, a node or a log of this name, set ROLLCALL_RUN_DIR"


@dataclass(frozen=True, slots=True)
class AskedRun:
    environ: Mapping[str, str]
    """The variables that its settings are read from."""
    is_named: bool
    """A word, an address or a variable names it."""
    is_guessed: bool = False
    """The variables are those of a node that lives here, beside which others may live."""
    note: str = ""
    """How it was guessed, for the user; "" if it is named."""
    found: Path | None = None
    """Its directory, if it was found in the working directory."""
    lack: str = ""
    """Why the directory that a word names is no run; "" for another word, or if a run is named."""


def of(command: str, options: argparse.Namespace, environ: Mapping[str, str]) -> AskedRun:
    """Return the run that a command with these options asks. Raises UnnamedRunError."""
    environ = named_run.with_variable(environ)
    given = options.run_dir or options.address or getattr(options, "run", None)
    is_named = bool(given) or node_shell.names_a_run(environ)
    lack = "" if is_named else named_run.directory_without_run(options)
    asked = AskedRun(environ, is_named, lack=f"{lack}. {OTHER_THINGS_NAME}" if lack else "")
    if options.run_dir:
        asked = replace(asked, environ=node_shell.of_run(environ, options.run_dir))
    elif not isinstance(getattr(options, "path", None), Path):  # else `open` reads that run
        asked = _lives_or_found(command, options, asked)
    if options.address:
        return replace(asked, environ={**asked.environ, "ROLLCALL_URL": options.address})
    if asked.is_guessed:
        return asked
    return replace(asked, environ=node_shell.of_named_run(asked.environ))


def _lives_or_found(command: str, options: argparse.Namespace, asked: AskedRun) -> AskedRun:
    """Return the run of the node that lives here, else one of the working directory, else `asked`.

    Raises UnnamedRunError if the command must not guess it.
    """
    try:
        node = node_shell.with_node(asked.environ, address=options.address or "")
    except UnnamedRunError as error:
        raise UnnamedRunError(asked.lack or str(error)) from None
    is_taken = node is not asked.environ
    is_only = is_taken and node_shell.is_only_run(node)
    if asked.lack and not is_only:
        run_dir = node_shell.run_of(node) if is_taken else None
        if not named_run.may_be_log(options, run_dir):
            raise UnnamedRunError(asked.lack)
    if is_taken and asked.is_named:
        return replace(asked, environ=node, is_guessed=not is_only)
    if is_taken:
        node_shell.refuse_guess(command, node)
        return replace(asked, environ=node, is_guessed=not is_only, note=node_shell.about(node))
    may_find = not asked.is_named and command not in node_shell.CHANGES
    if may_find and (found := found_run.instead_of(asked.environ)) is not None:
        return replace(asked, environ=node_shell.of_run(asked.environ, found), found=found)
    return asked
