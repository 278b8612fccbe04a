"""The builtin trainer as a program: flags → one attempt at the run → exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.files.os_errors import explain, to_a_reader
from contract.launch.programs import Program
from contract.options import fail
from contract.redaction import redact_here, shell_line
from trainer.cluster.driver_exit import LEAVE_SECONDS, exit_within
from trainer.cluster.imports import without_collections
from trainer.config.job_checks import missing_packages
from trainer.config.parse import parse_all
from trainer.config.whole_job import start_faults, try_code


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parsed = parse_all(words)
    config = parsed.config
    try:
        faults = start_faults(parsed)
    except OSError as error:
        return fail(explain(error), ExitCode.RUN_DIR)
    if faults:
        return fail("\n".join(map(str, faults)))
    for warning in config.warnings:
        print(redact_here(f"warning: {warning}"), file=sys.stderr, flush=True)
    if why := missing_packages():
        return fail(why)
    if refused := try_code(config, words):
        return fail("\n".join(map(str, refused)))
    # Imported only after the flags are valid, so that --help and a typing error answer at once.
    with without_collections():
        from trainer.training import run, standalone

    command = [sys.executable, "-m", Program.TRAINER, *words]
    again = shell_line(command, os.environ, str(Path.cwd()))
    try:
        with standalone.recorded(config, words, again):
            run.run(config)
    except Exception as error:
        if (code := run.exit_code(error)) is not None:
            return fail(error, code)
        if isinstance(error, OSError) and config.has(error.filename):
            return fail(explain(error), ExitCode.RUN_DIR)
        raise
    return ExitCode.FINISHED


if __name__ == "__main__":
    code = 1
    try:
        code = to_a_reader(main)
    finally:
        exit_within(LEAVE_SECONDS, code)
    sys.exit(code)
