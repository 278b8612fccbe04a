"""The builtin trainer, as a program: flags → data → cluster → actors → loop → exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trainer.checks import engine_faults
from trainer.config import Config, parse
from trainer.contract import ExitCode, append_event
from trainer.events import teller
from trainer.fence import SupersededError
from trainer.flags import ConfigError

if TYPE_CHECKING:
    from trainer.placement import Placement


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
    from trainer import data, engine_choice, hub, layout, loop, memory, placement, sync, team
    from trainer.actors.ray_group import RayLauncher
    from trainer.checkpoint.peers import Peers
    from trainer.checkpoint.resume import ResumeError
    from trainer.model_reward import ModelReward
    from trainer.reward_models import combination
    from trainer.stop import Stopped, StopRequest
    from trainer.types import TrainingError, UnfitModelError

    try:
        config.files.root.mkdir(parents=True, exist_ok=True)
        config = hub.prepare(config)
        prompts = data.load(config)
        reward = (
            reward_function(
                config.remote_rm_url,
                deadline=config.remote_rm_deadline,
                tell=partial(teller(config.files.journal), "reward-server"),
            )
            if config.remote_rm_url
            else None
        )
        wanted = layout.of(config)
        placement.join(wanted)
        stop = StopRequest()
        stop.install()
        placed = placement.reserve(wanted)
        config = engine_choice.settled(config, placed.assignment)
        if lacking := engine_faults(config):
            return _end("\n".join(lacking), ExitCode.USAGE)
        way = sync.choice(config, placed.assignment)
        config = replace(config, vllm_sync_backend=way.backend)
        sentences = [*placed.sentences(), engine_choice.sentence(config), str(way)]
        append_event(config.files.journal, "layout", "; ".join(sentences))
        if planned := memory.sentence(config, placed.assignment.layout):
            append_event(config.files.journal, "memory", planned)
        config = _fetched(config, placed)
        launcher = RayLauncher(placed, config.dist_timeout)
        held = Peers(config)
        crew = team.assemble(config, config.total_steps(len(prompts.stream)), launcher)
        if crew.reward:
            reward = ModelReward(crew.reward, combination(config.reward_combine))
        assert reward is not None, "one of the two flags is required"
        loop.train(config, crew, prompts, reward, stop, held)
        held.end()
    except (
        PromptError,
        RewardSpecError,
        RewardRejected,
        ResumeError,
        UnfitModelError,
        placement.LayoutError,
        hub.HubError,
    ) as error:
        unreachable = isinstance(error, hub.HubUnreachableError)
        return _end(error, ExitCode.UNREACHABLE if unreachable else ExitCode.USAGE)
    except RewardUnreachable as error:
        return _end(error, ExitCode.UNREACHABLE)
    except TrainingError as error:
        return _end(error, ExitCode.JOB_FAILED)
    except Stopped as error:
        held.end()  # all of it is on disk
        return _end(error, ExitCode.STOPPED)
    except SupersededError as error:
        return _end(error, ExitCode.RUN_DIR)
    return ExitCode.FINISHED


def _fetched(config: Config, placed: Placement) -> Config:
    """With models of the hub on every node of the run, before any process asks for one."""
    from trainer import hub, placement

    names = hub.models(config)
    if not names:
        return config
    print(f"Fetching {', '.join(names)} where it is not yet.", flush=True)
    found = list(placement.on_each_node(placed, hub.fetch_all, names).values())
    # Nodes whose caches lie elsewhere find their own by the name.
    same = all(directories == found[0] for directories in found)
    return hub.located(config, found[0]) if same else config


def _end(error: Exception | str, code: ExitCode) -> ExitCode:
    print(error, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
