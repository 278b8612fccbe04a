"""Recipe `openrlhf`: OpenRLHF's trainers.

train_ppo_ray has a driver on the head and uses Ray. train_sft, train_rm and train_dpo run once for
each GPU of all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from contract.files.child_variables import RESUME_FROM
from contract.files.deepspeed_names import ACTOR, CRITIC
from contract.launch import ranks
from contract.launch.command_lines import OPENRLHF_PPO, is_openrlhf_training
from contract.launch.launcher_flags import LaunchError, telling_steps
from contract.launch.launcher_flags import parse as parse_launch
from contract.launch.log_lines import STEP
from contract.resources import NodeResources
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.job import working_dir
from entrypoint.job.job_end import Lacking, of_script, written_to
from entrypoint.job.recipes.base import FilesGoneError, JobCommand, MemoryAdvice, PlacedJob
from entrypoint.job.recipes.command.recipe import (
    AnyCommand,
    needless_variables,
    no_directory,
    runtime_environment,
)
from entrypoint.job.recipes.interpreters import (
    for_actors,
    interpreter_for,
)
from entrypoint.job.recipes.openrlhf import checkpoints, command_line, layout
from entrypoint.job.recipes.openrlhf import flags as openrlhf_flags
from entrypoint.job.recipes.openrlhf.checkpoints import OpenRLHFCheckpoint
from entrypoint.job.recipes.openrlhf.command_line import (
    DIRECTORY,
    EVERY,
    LOAD,
    MOST,
    NO_STATE,
    OUTPUT,
    PPO,
    TEMPLATE,
    UNIVERSAL,
    WANDB,
    OpenRLHFCommand,
    parse,
)
from entrypoint.job.recipes.openrlhf.flags import Flag
from entrypoint.job.recipes.openrlhf.release import (
    PACKAGE,
    absent_paths,
    is_dotted,
    no_interpreter,
    not_checked,
    not_rollcalls_python,
    refusals,
    strange,
)
from entrypoint.job.recipes.torchrun.recipe import TorchRun
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.run.failure_classes import FailureClass

SAVE_EVERY = 20
"""Steps between two checkpoints, if the user does not say: OpenRLHF's default is never."""
NEEDED = (("data.prompt_dataset", "prompts"), ("actor.model_name_or_path", "a model"))
"""Flags of train_ppo_ray without a default that works."""
NUMBER = r"(?P<{}>[-+.\de]+)"
STEP_PATTERN = re.compile(
    r"Global step (?P<step>\d+): \{"
    + "".join(
        f"(?=(?:{'|'.join(f'.*{key!r}' for key in keys)}): {NUMBER.format(name)}|)"
        for name, keys in (
            ("reward", ("rollout/reward_mean", "reward")),
            ("kl", ("kl",)),
            ("step_seconds", ("timing/step_total",)),
        )
    )
)
"""A line of train_ppo_ray's logger, since 0.9."""
USAGE = re.compile(
    r"train_\w+\.py: error: |AssertionError: (num_nodes and num_gpus_per_node must be the same"
    r"|actor_num_nodes \* actor_num_gpus_per_node must be equal|\w+ requires n_samples_per_prompt"
    r"|Only support `--packing_samples` with vLLM|The number of sample batches must be greater"
    r"|(VLM|Async RLHF|--|`--|packing_samples|rollout_|n_samples_per_prompt|remote_rm_url).*)"
    r"|ZeRORuntimeException: The checkpoint being loaded used a DP"
    r"|num_update_steps_per_epoch must be positive"
)
NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=openrlhf has nothing to train: give OpenRLHF's "
    "command after `rollcall up --`, or in ROLLCALL_JOB, such as "
    "`python3 -m openrlhf.cli.train_ppo_ray …`"
)


class Ranks(TorchRun):
    tells_steps = True


RANKS = Ranks()


class OpenRLHF(AnyCommand):
    runs_any_program = False
    framework = "OpenRLHF"
    model_flags = ("--pretrain", "--actor.model_name_or_path", "--model.model_name_or_path")
    output_flags = ("--save_path", "--ckpt.output_dir")
    less_placement = "Ask for fewer nodes and GPUs, or add nodes"

    def recognises(self, typed: TypedCommand) -> Match:
        return Match.OWN if is_openrlhf_training(typed.program[-1]) else Match.NONE

    def is_translated(self, typed: TypedCommand) -> bool:
        return OPENRLHF_PPO.fullmatch(typed.program[-1]) is not None

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        command = parse(settings.job)
        found = [no_directory(settings), no_interpreter(settings, command)]
        found += needless_variables(settings)
        found += command_line.faults(command)
        if command.ppo:
            found += layout.faults(command)
        if not any(found):
            found += refusals(settings, command, _completed(settings, command, None))
        if command.on_ranks and not any(found):
            found += [not_rollcalls_python(command), *_launch_faults(command)]
        return [sentence for sentence in found if sentence]

    def warnings(self, settings: Settings) -> Sequence[str]:
        return tuple(_warnings(settings, parse(settings.job)))

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        given = parse(settings.job)
        if given.on_ranks:
            placed = RANKS.placed(_launched(settings, given), nodes)
            world = ranks.world_size(parse_launch(_launch(given)), nodes)
            parallel = given.number("ds.tensor_parallel_size") or 1
            other = _other_world(settings, given, world // parallel)
            return replace(placed, settings=settings, lacking=(*placed.lacking, *other))
        gpus = [node.gpus for node in nodes if node.gpus]
        chosen = layout.placed(given, gpus)
        lacking = layout.lacking(chosen.command, gpus)
        if not lacking:
            world = layout.ranks_of_actor(chosen.command)
            lacking += _other_world(settings, chosen.command, world)
        if chosen.command == given:
            return PlacedJob(settings=settings, lacking=tuple(lacking), warnings=chosen.warnings)
        dotted = is_dotted(settings, given)
        flags = openrlhf_flags.flat(chosen.command.flags, ppo=True)
        command = chosen.command if dotted else replace(chosen.command, flags=flags)
        job = replace(settings, job=command.words)
        return PlacedJob(settings=job, lacking=tuple(lacking), warnings=chosen.warnings)

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        given = parse(settings.job)
        found = _newest(settings, given) if resume_from is not None else None
        if found is not None:
            try:
                checkpoints.choose(found)
            except OSError as error:
                raise FilesGoneError(f"{found.path} cannot be chosen: {error}") from None
        command = _completed(settings, given, found)
        if given.on_ranks:
            return RANKS.command(_launched(settings, command), resume_from)
        python = interpreter_for(command.python, PACKAGE)
        env = {**command.variables, "ROLLCALL_RUN_DIR": str(settings.run_dir)}
        # its own runtime environment may have variables of the job's
        env["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        if resume_from is not None:
            env[RESUME_FROM] = str(resume_from)
        environment = for_actors(runtime_environment(settings), python)
        argv = (python, *command.options, *command.program, *command.flag_words)
        return JobCommand(argv, env, environment)

    def latest(self, settings: Settings) -> int | None:
        found = _newest(settings, parse(settings.job))
        return found.step if found else None

    def step_pattern(self, settings: Settings) -> re.Pattern[str]:
        own = STEP if parse(settings.job).on_ranks else STEP_PATTERN
        return settings.step_pattern or own

    def failure_in(self, line: str) -> FailureClass | None:
        return FailureClass.USAGE if USAGE.search(line) else None

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        return command_line.less_memory(parse(settings.job))

    def models(self, settings: Settings) -> Mapping[str, str]:
        return command_line.models(parse(settings.job))

    def lacking_at_end(self, settings: Settings) -> Lacking:
        given = parse(settings.job)
        return of_script if given.on_ranks else written_to(_output(settings, given))

    def effect(self, changed: Collection[str]) -> str:
        return (
            "It holds from the next step on; OpenRLHF restores weights, optimizer, schedule and "
            "data, and begins anew with the KL coefficient and the moving average"
        )


def _directory(settings: Settings, command: OpenRLHFCommand) -> Path:
    return working_dir.below(settings.run_dir, command.value(DIRECTORY) or PACKAGE)


def _places(settings: Settings, command: OpenRLHFCommand) -> list[Path]:
    """Return where the checkpoints of each role lie."""
    directory = _directory(settings, command)
    if not command.ppo:
        return [directory]
    roles = [ACTOR, CRITIC] if layout.has_critic(command) else [ACTOR]
    return [directory / role for role in roles]


def _newest(settings: Settings, command: OpenRLHFCommand) -> OpenRLHFCheckpoint | None:
    if command.has(NO_STATE):
        return None
    # with --train.async_enable, that of the best evaluation may be of a later step than its name
    best = not command.has(layout.ASYNC)
    return checkpoints.newest(_places(settings, command), with_best=best)


def _completed(
    settings: Settings, given: OpenRLHFCommand, found: OpenRLHFCheckpoint | None
) -> OpenRLHFCommand:
    """Return the command with checkpoints, resume and output as the supervision needs them."""
    command = given.without(LOAD, UNIVERSAL)
    directory, output = _directory(settings, given), _output(settings, given)
    for key, path in ((DIRECTORY, directory), (OUTPUT, output)):
        if command.value(key) != str(path):
            command = command.having(Flag(key, (str(path),)))
    if not command.has(EVERY):
        command = command.adding(Flag(EVERY, (str(SAVE_EVERY),)))
    if settings.wandb_api_key is not None and not command.has(WANDB):
        command = command.adding(Flag(WANDB, ("yes",)))  # WANDB_API_KEY has the key
    if found is not None:
        command = command.adding(Flag(LOAD))
    return command.spelt(dotted=is_dotted(settings, given))


def _output(settings: Settings, command: OpenRLHFCommand) -> Path:
    given = command.value(OUTPUT)
    run = settings.run_dir
    return working_dir.below(run, given) if given else RunFiles(run).exported


def _launch(command: OpenRLHFCommand) -> tuple[str, ...]:
    """Return the words of the launch on all nodes, with the node's Python."""
    variables = tuple(f"{name}={value}" for name, value in command.variables.items())
    program = command.program
    if not command.launcher and program[0] != "-m":
        program = ("python", *program)
    options = ("python", *command.options) if command.options else ()
    return (*variables, *command.launcher, *options, *program, *command.flag_words)


def _launched(settings: Settings, command: OpenRLHFCommand) -> Settings:
    return replace(settings, job=_launch(command))


def _launch_faults(command: OpenRLHFCommand) -> list[str]:
    try:
        telling_steps(parse_launch(_launch(command)))
    except LaunchError as error:
        return list(error.faults)
    return []


def _warnings(settings: Settings, command: OpenRLHFCommand) -> Iterator[str]:
    for key, path in (
        (DIRECTORY, _directory(settings, command)),
        (OUTPUT, _output(settings, command)),
    ):
        value = command.value(key)
        if value and not working_dir.expanded(value).is_absolute():
            yield f"--{command.given(key)[-1].name} {value} is relative: it is {path}"
    if unchecked := not_checked(settings, command):
        yield unchecked
    yield from strange(settings, command)
    yield from absent_paths(settings, command)
    if command.on_ranks:
        yield from parse_launch(_launch(command)).warnings
    if is_dotted(settings, command) and (old := _flat_names(command)):
        yield f"{old}: spelt as before 0.11, and passed on as OpenRLHF 0.11 spells it"
    for key, what in NEEDED if command.module == PPO else ():
        if not command.has(key):
            yield f"--{key} is missing: OpenRLHF cannot start without {what}"
    never = command.has(EVERY) and (command.number(EVERY) or 0) < 1
    for key, holds in ((EVERY, never), (NO_STATE, command.has(NO_STATE))):
        if holds:
            words = " ".join(command.given(key)[-1].words)
            yield f"{words}: without checkpoints, each attempt begins at step 1"
    if command.number(MOST) == 1:
        words = " ".join(command.given(MOST)[-1].words)
        yield f"{words}: OpenRLHF deletes it before it writes the next, so give 2 or more"
    if (template := command.value(TEMPLATE)) and "{" not in template:
        name = command.given(TEMPLATE)[-1].name
        yield (
            f"--{name} {template} is not a template: OpenRLHF takes its text, not a file; give "
            f'--{name} "$(cat {template})"'
        )
    if command.has(LOAD):
        name = command.given(LOAD)[-1].name
        yield f"--{name}: the recipe adds it when there is a complete checkpoint"
    if command.has(UNIVERSAL):
        name = command.given(UNIVERSAL)[-1].name
        yield f"--{name}: no effect here, because OpenRLHF writes no universal checkpoints"
    if not settings.shares_run_dir:
        yield f"all ranks write checkpoints and read them: all nodes must share --{DIRECTORY}"


def _flat_names(command: OpenRLHFCommand) -> str:
    """Return the first flags that are spelt as before 0.11; "" if there are none."""
    upgraded = {flag.name for flag in command.spelt(dotted=True).flags}
    names = [f"--{flag.name}" for flag in command.flags if flag.name not in upgraded]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _other_world(settings: Settings, command: OpenRLHFCommand, world: int) -> Iterator[str]:
    """Refuse a resume that DeepSpeed's ZeRO cannot do: at another number of ranks."""
    found = _newest(settings, command)
    saved = checkpoints.zero_ranks(found) if found else 0
    if found is not None and saved and saved != world:
        yield (
            f"{found.tag} was saved by {saved} ranks of DeepSpeed's ZeRO, which cannot load it on "
            f"{world}: bring the nodes back, or remove the checkpoints to begin again"
        )


RECIPE = OpenRLHF()
