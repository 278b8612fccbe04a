"""One attempt at a training run: data → cluster → models → loop; the exit code of each error."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.files.os_errors import why_absent
from contract.journal import append_event, attempt_number, journal_writer
from contract.launch.model_digests import OtherModelError
from contract.lease import SupersededError
from contract.options import ended
from contract.progress import Phase, PhaseFile, Progress
from contract.run_dir import write_atomically
from env.data.prompts import PromptError
from env.environments.load import EnvironmentSpecError
from env.episodes.attempts import without_reward
from env.registry import (
    RewardRejected,
    RewardSpecError,
    RewardUnreachable,
    keep_servers_in,
    pure_reward,
    reward_function,
)
from env.types import RewardFunction
from env.user_code import Cause
from trainer.algorithms import own_trials
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.writer import RunState
from trainer.cluster import memory_estimate, placement
from trainer.cluster.bin_packing import Assignment
from trainer.cluster.placement import Placement
from trainer.cluster.ray_worker_group import RayLauncher
from trainer.cluster.standby import StandbyRanks
from trainer.cluster.stop import Stopped, StopRequest
from trainer.config import code_check, data_columns, label_check, layout, reward_models
from trainer.config.config import Config
from trainer.config.data_sets import DataSets
from trainer.config.job_checks import engine_faults, model_faults
from trainer.metrics import model_card
from trainer.metrics.callbacks import Callback
from trainer.models import hub, hub_push, pretrained
from trainer.rollout import episode_setup, image_chat
from trainer.rollout import prompts as data
from trainer.rollout.episodes import EpisodeSetup
from trainer.rollout.rewards import ModelReward
from trainer.training import finished, loop
from trainer.training.inputs import TrainingInputs
from trainer.training.standby_refill import StandbyRefill
from trainer.types import NotSharedError, TrainingError, UnfitModelError, UserCodeError
from trainer.weight_sync import choose
from trainer.workers import groups
from trainer.workers.groups import WorkerGroups

EXIT_CODES: Mapping[type[Exception], ExitCode] = {
    PromptError: ExitCode.USAGE,
    RewardSpecError: ExitCode.USAGE,
    EnvironmentSpecError: ExitCode.USAGE,
    RewardRejected: ExitCode.USAGE,
    ResumeError: ExitCode.USAGE,
    UnfitModelError: ExitCode.USAGE,
    OtherModelError: ExitCode.USAGE,
    NotSharedError: ExitCode.USAGE,
    placement.LayoutError: ExitCode.USAGE,
    hub.HubUnreachableError: ExitCode.UNREACHABLE,
    hub.HubError: ExitCode.USAGE,
    RewardUnreachable: ExitCode.UNREACHABLE,
    UserCodeError: ExitCode.USAGE,
    TrainingError: ExitCode.JOB_FAILED,
    Stopped: ExitCode.STOPPED,
    SupersededError: ExitCode.RUN_DIR,
}
"""Errors whose sentence is enough for the user. The first entry that matches an error counts."""
ENGINE_NAMES = {"hf": "transformers", "vllm": "vLLM"}


def exit_code(error: Exception) -> ExitCode | None:
    """Return None if the error is a bug of this program."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), None)


def run(
    given: Config, callbacks: Sequence[Callback] = (), spelt: Callable[[str], str] = str
) -> RunState:
    """Train from the newest checkpoint to the last step. Returns the run's final state.

    The flags as they are `given` name data sets and models of the hub. `with_data` has the data
    sets as directories, `with_tokeniser` the models, too, but without weights. `settled` follows
    from `with_data`, once nodes are reserved: it has what depends on them, and whole models.

    `spelt`: returns a sentence with the flags as whoever began the run spells them.

    Raises the errors of EXIT_CODES, and CallbackError.
    """
    files = given.files
    files.root.mkdir(parents=True, exist_ok=True)
    finished.compare_models(given)
    pretrained.trust(given.trust_remote_code)
    with_data = with_local_data(given)
    for note in with_data.notes:
        print(f"note: {spelt(note)}", flush=True)
    keep_servers_in(files.servers)
    with_tokeniser = with_small_files(with_data)
    tell_of_code(with_tokeniser)
    prompts = data.load(with_tokeniser)
    own_trials.run(with_data)
    # A wrong flag ends the attempt before it reserves anything.
    reward, episodes = _reward_of_flags(with_data), episode_setup.of_flags(with_data)
    _check_first_images(with_data, episodes, prompts)
    _check_first_rows(with_data, reward, prompts)
    wanted = layout.of(with_data)
    stays = placement.join(wanted)
    stop = StopRequest()
    stop.install()
    placed = placement.reserve(wanted)
    try:
        _check_models(with_data, placed)
        _check_directories(with_data, placed)
        settled = _fetched(_settled(with_data, placed), placed)
        standby, tell = StandbyRanks(), journal_writer(files.journal)
        launcher = RayLauncher(placed, settled.dist_timeout, standby, tell)
        peers = Replicator(settled)
        workers = groups.assemble(settled, settled.total_steps(len(prompts.stream)), launcher)
        own = reward or _model_reward(settled, workers)
        inputs = TrainingInputs(prompts, own, episodes, (*callbacks, StandbyRefill(standby)))
        try:
            state = loop.train(settled, workers, inputs, stop, peers)
        except Stopped:
            peers.end()  # the checkpoint on disk is complete
            raise
        except UserCodeError as error:
            if Progress.read(files.progress) is None or not error.asks_others:
                raise
            # The code has worked for whole steps: what it asks may answer again.
            raise TrainingError(str(error)) from error
        peers.end()
    finally:
        stop.is_over = True
        if stays:
            placement.release(placed)
    if given.hub_model_id:
        push(given, state, stop)
    return state


def push(config: Config, state: RunState, stop: StopRequest) -> None:
    """Push the final model and its card to the hub. A failure is journaled, and fails nothing."""
    tell, repository = journal_writer(config.files.journal), config.hub_model_id
    phase = PhaseFile(config.files.phase)

    def alive(ticks: int) -> bool:
        phase.write(Phase(attempt_number(), state.step, "push", ticks))
        return not stop.requested

    try:
        text = model_card.card(model_card.facts_of(config, state), os.environ)
        write_atomically(config.exported / "README.md", text)
        to = hub_push.Repository(repository, config.hub_private_repo)
        tell("push", f"The model is on the hub: {hub_push.push(config.exported, to, alive)}")
    except (hub_push.PushError, OSError) as error:
        tell(
            "push-failed",
            f"{ended(f'The model is not on the hub: {error}')} It is whole in {config.exported}: "
            f"`hf upload {repository} {config.exported}` pushes it by hand.",
        )
    finally:
        phase.close()


def tell_of_code(config: Config) -> None:
    """Print and journal which code of the models runs, before any of it does."""
    if config.trust_remote_code and (said := pretrained.code_that_runs(config.models.values())):
        print(said, flush=True)
        journal_writer(config.files.journal)("remote-code", said)


def _reward_of_flags(config: Config) -> RewardFunction | None:
    """Return the reward function that the flags name; None if reward models give the reward."""
    if not config.reward_spec:
        return None
    tell = partial(journal_writer(config.files.journal), "reward-server")
    return reward_function(config.reward_spec, deadline=config.remote_rm_deadline, tell=tell)


def _model_reward(config: Config, workers: WorkerGroups) -> RewardFunction:
    if workers.reward is None:
        return without_reward  # the environment scores its episodes
    return ModelReward(workers.reward, reward_models.combination(config.reward_combine))


def _check_first_rows(config: Config, reward: RewardFunction | None, prompts: data.Data) -> None:
    """Score the first rows before the first step of a run; later steps have shown that labels fit.

    The reward of a user's file or server may fail for a while, so its failure is only journaled.
    Raises PromptError if the built-in reward cannot read the labels, UserCodeError if a user's
    function can score no row however often it is tried.
    """
    if Progress.read(config.files.progress) is not None:
        return
    tell = journal_writer(config.files.journal)
    for flag, path, rows in (
        ("--prompt_data", config.prompt_data, prompts.stream.prompts),
        ("--eval_dataset", config.eval_dataset, prompts.held_out),
    ):
        if said := label_check.with_answers(flag, path, rows):
            tell("first-rows", ended(said))
        for one in path.paths if path else ():
            for said in label_check.without_options(config, flag, one):
                tell("first-rows", ended(said))
    if reward is None:
        return
    first, pure = prompts.stream.prompts, pure_reward(config.reward_spec)
    if fault := label_check.unscored(config, reward, config.prompt_data, first):
        if (raised := fault.raised) is not None and raised.cause is Cause.BUG:
            where = f" (raised at {raised.place}). Correct that line" if raised.place else ""
            raise UserCodeError(f"{fault}{where}")
        label = first[0].label
        if pure or label_check.parts(label):
            raise PromptError(label_check.blamed_on_labels(config, fault, label))
        if not code_check.is_in_python(config):  # `train` has told it
            tell("first-rows", f"{ended(str(fault))} The run begins nevertheless.")
    elif pure and (said := label_check.unreadable(config, pure, config.prompt_data, first)):
        tell("first-rows", f"{ended(said)} Samples of such rows are left out of the training.")


def _check_first_images(config: Config, episodes: EpisodeSetup | None, prompts: data.Data) -> None:
    """Raise PromptError if none of the first rows' images can be used: their folder is wrong."""
    if episodes is None:
        return
    chat, limit = episodes.runner.chat, config.prompt_max_len
    for path, rows in (
        (config.prompt_data, prompts.stream.prompts),
        (config.eval_dataset, prompts.held_out),
    ):
        if fault := image_chat.first_fault(chat, rows, limit):
            raise PromptError(f"{path}: none of the first rows with images can be used: {fault}")


def _settled(config: Config, placed: Placement) -> Config:
    """Return the flags with every choice that depends on the nodes, and journal the layout."""
    with_engine = choose_engine(config, placed.assignment)
    if lacking := engine_faults(with_engine):
        raise placement.LayoutError("\n".join(lacking))
    way = choose.choose_backend(with_engine, placed.assignment)
    settled = replace(with_engine, vllm=replace(with_engine.vllm, sync_backend=way.backend))
    engine = f"rollouts by {ENGINE_NAMES[settled.rollout_engine]}"
    layout_event = "; ".join([*placed.sentences(), engine, str(way)])
    append_event(config.files.journal, "layout", layout_event)
    if estimate := memory_estimate.sentence(settled, placed.assignment.layout):
        append_event(config.files.journal, "memory", estimate)
    return settled


def choose_engine(config: Config, found: Assignment) -> Config:
    """Return the flags with --rollout_engine chosen, and on GPUs with the engine's memory share.

    `auto` means vLLM if the run has GPUs and vLLM is installed, else transformers: on CPUs vLLM
    takes half a minute to start, and a gigabyte for its cache. Several GPUs for one engine also
    mean vLLM; `trainer.config.job_checks` reports what is not installed.
    """
    kind = config.rollout_engine
    if kind == "auto":
        wanted = find_spec("vllm") or config.vllm.tensor_parallel_size > 1
        kind = "vllm" if found.on_gpus and wanted and layout.is_exact(config) else "hf"
    share = config.vllm.gpu_memory_utilization
    if found.on_gpus and kind == "vllm":
        share = memory_estimate.engine_share(config, found.layout)
    vllm = replace(config.vllm, gpu_memory_utilization=share)
    return replace(config, rollout_engine=kind, vllm=vllm)


def hub_models(config: Config) -> list[str]:
    """Return the models of a run that are names on the hub."""
    return [name for name in _models(config) if hub.is_name(name)]


def _models(config: Config) -> Sequence[str]:
    return [*dict.fromkeys(config.models.values())]


def with_local_data(config: Config) -> Config:
    """Return the flags with data sets of the hub as directories in the run directory.

    Raises HubError.
    """
    local = replace(
        config,
        prompt_data=_on_this_disk(config, config.prompt_data, config.prompt_split),
        eval_dataset=_on_this_disk(config, config.eval_dataset, config.eval_split),
    )
    return data_columns.chosen(local)


def with_small_files(config: Config) -> Config:
    """Return the flags with directories of the hub's models that have all files but the weights.

    The driver may need the tokeniser, and a wrong name or model must end the attempt before the
    cluster reserves anything. Raises HubError, and UnfitModelError for a model that would also be
    refused as a directory.
    """
    small = {name: hub.fetch(name, only=hub.SMALL) for name in hub_models(config)}
    here = with_local_models(config, small)
    if small and (faults := [*engine_faults(here), *model_faults(here, weights=False)]):
        raise UnfitModelError("\n".join(faults))
    return here


def _on_this_disk(config: Config, given: DataSets | None, split: str) -> DataSets | None:
    """Return data sets with those of the hub as directories. Raises HubError."""
    if given is None:
        return None
    into = config.files.root / "data"
    names = (
        name if Path(name).is_absolute() else str(hub.rows(name, into, split))
        for name in given.names
    )
    return replace(given, names=tuple(names))


def with_local_models(config: Config, directories: Mapping[str, str]) -> Config:
    """Return the flags with the directories of models instead of their names on the hub."""
    reward = (directories.get(name, name) for name in reward_models.names(config))
    return replace(
        config,
        pretrain=directories.get(config.pretrain, config.pretrain),
        critic_pretrain=directories.get(config.critic_pretrain, config.critic_pretrain),
        reward_pretrain=",".join(reward),
    )


def _check_models(config: Config, placed: Placement) -> None:
    """Raises UnfitModelError if a node that shares no storage lacks a model's directory."""
    if config.storage == "shared":
        return
    found = placement.on_each_node(placed, missing_models, config)
    lacking = [f"{node} has no {path}" for node, paths in found.items() for path in paths]
    if lacking:
        raise UnfitModelError(
            f"{'; '.join(lacking)}: a model that is given by its directory must be on every node. "
            "Mount or copy it there, or give its name on the hub"
        )


def missing_models(config: Config) -> list[str]:
    """Return the directories of models that this node does not have."""
    names = _models(config)
    return [name for name in names if not hub.is_name(name) and why_absent(Path(name))]


def _check_directories(config: Config, placed: Placement) -> None:
    """Raises NotSharedError if a node does not see a directory that the flags name for the run.

    The head has proven only that all nodes share the run directory.
    """
    if config.storage != "shared":
        return
    for flag, directory in (("--ckpt_path", config.checkpoints), ("--save_path", config.exported)):
        if directory.is_relative_to(config.files.root):
            continue
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".shared-{uuid.uuid4().hex}"
        try:
            probe.touch()
            found = placement.on_each_node(placed, is_here, probe)
        finally:
            probe.unlink(missing_ok=True)
        if lacking := [node for node, here in found.items() if not here]:
            raise NotSharedError(
                f"{flag} {directory}: {', '.join(lacking)} does not see what the driver's node "
                "writes there, so checkpoints and models would lie in pieces. Leave the flag out "
                "or give a relative path, which is below the run directory; or mount the directory "
                "on every node"
            )


def is_here(path: Path) -> bool:
    """Return whether this node sees the file."""
    return path.exists()


def _fetched(config: Config, placed: Placement) -> Config:
    """Fetch models of the hub to every node of the run, before a process loads one.

    Raises UnfitModelError for a model that would also be refused as a directory.
    """
    names = hub_models(config)
    if not names:
        return config
    print(f"Fetching {', '.join(names)} to the nodes that do not have them yet.", flush=True)
    found = list(placement.on_each_node(placed, fetch_models, config).values())
    finished.compare_models(config)
    here = with_local_models(config, found[0])
    if faults := engine_faults(here):
        raise UnfitModelError("\n".join(faults))
    # If the caches of nodes lie in different places, each node finds its own by the name.
    same = all(directories == found[0] for directories in found)
    return here if same else config


def fetch_models(config: Config) -> dict[str, str]:
    """Fetch models of the hub to this node, and check their files. Returns name → directory.

    Raises HubError, UnfitModelError, and OSError if the disk fails.
    """
    found = hub.fetch_all(hub_models(config))
    if faults := model_faults(with_local_models(config, found)):
        raise UnfitModelError("\n".join(faults))
    return found
