"""`python -m trainer.supervised sft|rm|dpo FLAGS`: one rank of a supervised stage, through TRL.

Each rank finds itself by torchrun's variables; without them it is the only one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.files.os_errors import explain, to_a_reader
from contract.options import ConfigError, fail
from contract.redaction import redact_here
from trainer.cluster import deepspeed_notice
from trainer.cluster.driver_exit import LEAVE_SECONDS, exit_within
from trainer.metrics.sinks import finish_limit
from trainer.supervised.parse import check
from trainer.supervised.stages import DESCRIPTIONS, STAGES


def main(argv: Sequence[str] | None = None) -> int:
    stage, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if stage in ("-h", "--help"):
        print(_help())
        return ExitCode.FINISHED
    if stage not in STAGES:
        words = ", ".join(STAGES)
        return fail(f"{stage or 'nothing'}: no such command. Known: {words}")
    run_dir = os.environ.get("ROLLCALL_RUN_DIR")
    try:
        command = check(stage, rest, Path(run_dir) if run_dir else None)
    except ConfigError as error:
        return fail(error)
    except BrokenPipeError:  # the reader of the help has left
        raise
    except OSError as error:
        return fail(explain(error), ExitCode.RUN_DIR)
    if os.environ.get("RANK", "0") == "0":
        for warning in command.warnings:
            print(redact_here(f"warning: {warning}"), file=sys.stderr, flush=True)
    # Imported only after the flags are valid, so that --help and a typing error answer at once.
    deepspeed_notice.leave_out()
    from trainer.supervised import run

    try:
        run.run(command)
    except Exception as error:
        if (code := run.exit_code(error)) is None:
            raise
        return fail(error, code)
    return ExitCode.FINISHED


def _help() -> str:
    lines = [f"  {stage}  {DESCRIPTIONS[stage]}" for stage in STAGES]
    usage = "usage: python -m trainer.supervised STAGE [--FLAG VALUE …]"
    return "\n".join([usage, "", *lines, "", "STAGE --help lists the flags of a stage."])


if __name__ == "__main__":
    code = 1
    try:
        code = to_a_reader(main)
    finally:
        # W&B keeps its limit itself, unless its process is frozen.
        if (limit := finish_limit(os.environ)) is not None:
            exit_within(limit + LEAVE_SECONDS, code)
    sys.exit(code)
