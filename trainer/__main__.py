"""The builtin trainer, as a program: flags → data → cluster → actors → loop → exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.checks import engine_faults
from trainer.config import Config, parse
from trainer.contract import ExitCode
from trainer.flags import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        return _end(error, ExitCode.USAGE)
    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if lacking := engine_faults(config):
        return _end("\n".join(lacking), ExitCode.USAGE)
    return run(config)


def run(config: Config) -> int:
    """One attempt at a training run, from the newest checkpoint to the end."""
    # Not before the flags are right: --help and a typing error answer at once.
    from env.prompts import PromptError
    from env.registry import RewardRejected, RewardSpecError, RewardUnreachable, reward_function
    from trainer import data, loop, placement, team
    from trainer.actors.ray_group import RayLauncher
    from trainer.checkpoint.resume import ResumeError
    from trainer.stop import Stopped, StopRequest
    from trainer.types import TrainingError, UnfitModelError

    try:
        config.files.root.mkdir(parents=True, exist_ok=True)
        prompts = data.load(config)
        reward = reward_function(config.remote_rm_url, deadline=config.remote_rm_deadline)
        actors = team.size(config)
        placement.join(actors)
        stop = StopRequest()
        stop.install()
        launcher = RayLauncher(placement.reserve(actors), config.dist_timeout)
        crew = team.assemble(config, config.total_steps(len(prompts.stream)), launcher)
        loop.train(config, crew, prompts, reward, stop)
    except (
        PromptError,
        RewardSpecError,
        RewardRejected,
        ResumeError,
        UnfitModelError,
    ) as error:
        return _end(error, ExitCode.USAGE)
    except RewardUnreachable as error:
        return _end(error, ExitCode.UNREACHABLE)
    except TrainingError as error:
        return _end(error, ExitCode.JOB_FAILED)
    except Stopped as error:
        return _end(error, ExitCode.STOPPED)
    return ExitCode.FINISHED


def _end(error: Exception | str, code: ExitCode) -> ExitCode:
    print(error, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
