"""One attempt at a training run: data → cluster → models → loop, and what its errors end with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from contract.journal import append_event, teller
from contract.lease import SupersededError
from contract.progress import Progress
from contract.run_dir import ExitCode
from contract.stop import Stopped, StopRequest
from env.prompts import PromptError
from env.registry import (
    REWARDS,
    RewardRejected,
    RewardSpecError,
    RewardUnreachable,
    reward_function,
)
from env.types import RewardFunction
from trainer import loop
from trainer.checkpoint.replication import Peers
from trainer.checkpoint.resume import ResumeError
from trainer.cluster import engine_choice, memory_estimate, placement
from trainer.cluster.placement import Placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.config import first_rows, layout
from trainer.config.config import Config
from trainer.config.installed import engine_faults
from trainer.config.reward_models import combination
from trainer.models import hub
from trainer.rollout import prompts as data
from trainer.rollout.rewards import ModelReward
from trainer.types import TrainingError, UnfitModelError
from trainer.weight_sync import choose
from trainer.workers import groups
from trainer.workers.groups import Team

EXIT_CODES: Mapping[type[Exception], ExitCode] = {
    PromptError: ExitCode.USAGE,
    RewardSpecError: ExitCode.USAGE,
    RewardRejected: ExitCode.USAGE,
    ResumeError: ExitCode.USAGE,
    UnfitModelError: ExitCode.USAGE,
    placement.LayoutError: ExitCode.USAGE,
    hub.HubUnreachableError: ExitCode.UNREACHABLE,
    hub.HubError: ExitCode.USAGE,
    RewardUnreachable: ExitCode.UNREACHABLE,
    TrainingError: ExitCode.JOB_FAILED,
    Stopped: ExitCode.STOPPED,
    SupersededError: ExitCode.RUN_DIR,
}
"""What a user can put right, or asked for: their sentences say all. The first that fits counts."""


def exit_code(error: Exception) -> ExitCode | None:
    """None where the error is the program's own."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), None)


def run(config: Config) -> None:
    """From the newest checkpoint to the last step.

    Raises those of EXIT_CODES.
    """
    config.files.root.mkdir(parents=True, exist_ok=True)
    config = hub.prepare(config)
    prompts = data.load(config)
    of_spec = _reward_of_spec(config)  # a wrong one ends before anything is reserved
    _refuse_unscored(config, of_spec, prompts)
    wanted = layout.of(config)
    placement.join(wanted)
    stop = StopRequest()
    stop.install()
    placed = placement.reserve(wanted)
    config = _fetched(_settled(config, placed), placed)
    launcher = RayLauncher(placed, config.dist_timeout)
    held = Peers(config)
    crew = groups.assemble(config, config.total_steps(len(prompts.stream)), launcher)
    try:
        loop.train(config, crew, prompts, _reward(config, crew, of_spec), stop, held)
    except Stopped:
        held.end()  # all of it is on disk
        raise
    held.end()


def _reward_of_spec(config: Config) -> RewardFunction | None:
    """None where models of the run give the reward."""
    if not config.remote_rm_url:
        return None
    tell = partial(teller(config.files.journal), "reward-server")
    return reward_function(config.remote_rm_url, deadline=config.remote_rm_deadline, tell=tell)


def _refuse_unscored(config: Config, reward: RewardFunction | None, prompts: data.Data) -> None:
    """Before the first step of a run: what follows has shown that labels are understood.

    The reward of a user's file or server may fail for a while: a step that it fails in says so.
    """
    if reward is None or Progress.read(config.files.progress) is not None:
        return
    first = prompts.stream.prompts
    if (fault := first_rows.unscored(config, reward, first)) is None:
        return
    label = first[0].label
    if config.remote_rm_url.strip() in REWARDS or first_rows.parts(label):
        raise PromptError(first_rows.blamed_on_labels(config, fault, label))
    teller(config.files.journal)("first-rows", f"{fault}. The run begins nevertheless.")


def _reward(config: Config, crew: Team, of_spec: RewardFunction | None) -> RewardFunction:
    if crew.reward:
        return ModelReward(crew.reward, combination(config.reward_combine))
    assert of_spec is not None, "one of the two flags is required"
    return of_spec


def _settled(config: Config, placed: Placement) -> Config:
    """With all that was to be chosen by the nodes' hardware and places; the journal has it."""
    config = engine_choice.settled(config, placed.assignment)
    if lacking := engine_faults(config):
        raise placement.LayoutError("\n".join(lacking))
    way = choose.choice(config, placed.assignment)
    config = replace(config, vllm_sync_backend=way.backend)
    sentences = [*placed.sentences(), engine_choice.sentence(config), str(way)]
    append_event(config.files.journal, "layout", "; ".join(sentences))
    if planned := memory_estimate.sentence(config, placed.assignment.layout):
        append_event(config.files.journal, "memory", planned)
    return config


def _fetched(config: Config, placed: Placement) -> Config:
    """With models of the hub on every node of the run, before any process asks for one.

    Raises UnfitModelError for those that a directory of the user's would be refused for.
    """
    names = hub.models(config)
    if not names:
        return config
    print(f"Fetching {', '.join(names)} where it is not yet.", flush=True)
    found = list(placement.on_each_node(placed, hub.fetch_models, config).values())
    here = hub.located(config, found[0])
    if faults := engine_faults(here):
        raise UnfitModelError("\n".join(faults))
    # Nodes whose caches lie elsewhere find their own by the name.
    same = all(directories == found[0] for directories in found)
    return here if same else config
