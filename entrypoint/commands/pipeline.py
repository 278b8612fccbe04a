"""`pipeline`: jobs in a row, each of which begins only if the one before has finished."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contract.exit_codes import ExitCode
from entrypoint.commands.cli import COMMANDS
from entrypoint.commands.head_client import INTERRUPTED, NoAnswerError, ask
from entrypoint.commands.jobs import SUBMIT_SECONDS, shown_to_its_end, submitted, uploaded
from entrypoint.commands.pasted import of_cluster
from entrypoint.commands.status_text import job_sentences
from entrypoint.config import pipeline as files
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir

Row = Mapping[str, Any]


def pipeline(settings: Settings, options: argparse.Namespace) -> int:
    """Bring the stages that have not finished; show their output, one stage after the other.

    Returns the exit code of the stage that did not finish; 0 if all have.
    """
    file = Path(options.file)
    stages = _read(file)
    ask(settings, "GET", "/v1/jobs")  # before a directory is packed: does this head take jobs?
    body = {"stages": [_submission(settings, stage, file.parent) for stage in stages]}
    # With the stages' keys, a submission whose answer was lost can be repeated.
    post = partial(ask, settings, "POST", "/v1/pipelines", json=body, timeout=SUBMIT_SECONDS)
    rows: list[Row] = submitted(settings, post)["jobs"]
    if options.no_wait:
        print(json.dumps(rows) if options.json else "\n".join(row["id"] for row in rows))
        return ExitCode.FINISHED
    for row in rows:
        said = f"stage {row['stage']} is {row['id']} ({row['state']}), in {row['run_dir']}"
        print(said, file=sys.stderr)
    try:
        rows = _follow(settings, rows, as_json=options.json)
    except KeyboardInterrupt:
        again = f"rollcall pipeline {shlex.quote(options.file)}"
        said = f"the stages go on: see `rollcall list`, or `{again}` again"
        print(said, file=sys.stderr)
        return INTERRUPTED
    if options.json:
        print(json.dumps(rows))
    return next((int(row["exit_code"]) for row in rows if row["exit_code"]), ExitCode.FINISHED)


def _follow(settings: Settings, rows: Sequence[Row], *, as_json: bool) -> list[Row]:
    """Show the stages up to the first that does not finish; return their last rows.

    Raises NoAnswerError.
    """
    over: list[Row] = []
    for place, row in enumerate(rows, start=1):
        if row["ended"] is None:
            output = sys.stderr if as_json else sys.stdout
            row = shown_to_its_end(settings, row["id"], output)
        over.append(row)
        for said in job_sentences(row):
            print(f"stage {row['stage']}: {said}", file=sys.stderr)
        if row["state"] != "finished":
            for behind in rows[place:]:
                print(f"stage {behind['stage']} does not begin", file=sys.stderr)
            break
    return over


def _read(path: Path) -> list[files.Stage]:
    """Return the stages of the file. Raises NoAnswerError."""
    try:
        stages = files.parsed(path.read_text(), path.parent)
        wrong = ((one.name, of_cluster(one.words, COMMANDS)) for one in stages)
        if found := [f"stage {name}: {why}" for name, why in wrong if why]:
            raise files.PipelineError(found)
        return stages
    except files.PipelineError as error:
        problem = "\n".join(f"{path}: {fault}" for fault in error.faults)
    except (OSError, ValueError) as error:
        problem = f"{path}: {getattr(error, 'strerror', None) or 'it is not text'}"
    raise NoAnswerError(problem, ExitCode.USAGE)


def _submission(settings: Settings, stage: files.Stage, beside: Path) -> dict[str, Any]:
    """Return a stage as the head takes it, its directory uploaded. Raises NoAnswerError.

    `beside`: where a relative path of the directory begins.
    """
    environment = dict(stage.runtime_env)
    if working_dir.is_local(environment):
        directory = beside / working_dir.expanded(environment["working_dir"])
        environment["working_dir"] = str(directory.absolute())
        try:
            environment = uploaded(settings, environment)
        except NoAnswerError as error:
            raise NoAnswerError(f"stage {stage.name}: {error}", error.exit_code) from None
    words = list(stage.words)
    return {"name": stage.name, "job": words, "runtime_env": environment, "key": stage.key}
