"""Converts OpenRLHF's checkpoint into one that a run resumes from.

    python -m trainer.import_openrlhf DIRECTORY --trust_pickles --FLAG VALUE …

DIRECTORY is OpenRLHF's --ckpt_path. The flags are those of the run that continues it: the
checkpoint is written to that run's checkpoint directory. OpenRLHF's files are pickles, which can
run code when they are read: give --trust_pickles only for files that you trust.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.manifest import newest_checkpoint
from contract.options import ConfigError, fail
from env.data.prompts import PromptError
from trainer.checkpoint import openrlhf, state, writer
from trainer.checkpoint.writer import DriverState, RunState
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.config.parse import parse
from trainer.models import pretrained
from trainer.models.hub import HubError
from trainer.types import ALONE, UnreadableCheckpointError

TRUST = "--trust_pickles"


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0].startswith("-"):
        print(__doc__)
        return ExitCode.FINISHED if words[:1] in (["--help"], ["-h"]) else ExitCode.USAGE
    source = Path(words[0]).absolute()
    if TRUST not in words:
        return fail(
            f"{source} holds pickles, which can run code when they are read. Give {TRUST} if you "
            "trust whoever wrote them"
        )
    try:
        config = parse([word for word in words[1:] if word != TRUST])
        pretrained.trust(config.trust_remote_code)
        print(f"Reading {source}: pickles, which can run code.", flush=True)
        directory = convert(source, config)
    except (openrlhf.IncompleteError, UnreadableCheckpointError) as error:
        print(f"OpenRLHF's checkpoint cannot be converted: {error}", file=sys.stderr)
        return ExitCode.USAGE
    except (ConfigError, HubError, PromptError) as error:
        print(error, file=sys.stderr)
        return ExitCode.USAGE
    print(f"Written: {directory}. A run with these flags resumes from there.")
    return ExitCode.FINISHED


def convert(source: Path, config: Config) -> Path:
    """Write the newest checkpoint below `source` as one of the run. Returns its directory.

    Raises IncompleteError or UnreadableCheckpointError if `source` cannot be read, IncompleteError
    if the run has a checkpoint already.
    """
    if (step := newest_checkpoint(config.checkpoints, checksums=False)) is not None:
        raise openrlhf.IncompleteError(
            f"{config.checkpoints} has a checkpoint of step {step} already: give another --run_dir"
        )
    roles = [Role.POLICY, *([Role.CRITIC] if config.has_critic else [])]
    found = openrlhf.find(source, roles)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from trainer.checkpoint import openrlhf_deepspeed  # imports DeepSpeed

    states = {role: openrlhf_deepspeed.load(found[role], role) for role in roles}
    position = states[Role.POLICY][1]
    if position is None:
        raise openrlhf.IncompleteError(f"{found['policy']} does not say its step (global_step)")
    from trainer.rollout import prompts
    from trainer.training import run

    cursor = prompts.load(run.with_local_data(config)).stream.state_dict()
    directory = writer.begin(config.checkpoints, position.step)
    files = [state.save(directory, role, held, ALONE) for role, (held, _) in states.items()]
    after = RunState(
        step=position.step, seed=config.train.seed, prompts=openrlhf.cursor_at(position, cursor)
    )
    writer.commit(directory, DriverState(after), files)
    return directory


if __name__ == "__main__":
    sys.exit(main())
