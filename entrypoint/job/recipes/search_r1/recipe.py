"""Recipe `search-r1`: Search-R1's trainer, on its old copy of verl, with a retriever on every node.

It saves weights and cannot resume. A new attempt begins with the newest weights: optimizer,
schedule, order of the data and the reference of the KL begin anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from contract.files.child_variables import RESUME_FROM
from entrypoint.config.parsers import ServiceOn
from entrypoint.config.runtime_env import NEEDS_INSTALL
from entrypoint.config.settings import Settings
from entrypoint.job.job_end import JobEnd, Lacking
from entrypoint.job.recipes.base import AbsentPython, JobCommand, NotHere
from entrypoint.job.recipes.command.recipe import (
    needless_variables,
    no_directory,
    runtime_environment,
)
from entrypoint.job.recipes.interpreters import (
    for_actors,
    has_module,
    interpreter_for,
    others_with,
    unanswered,
)
from entrypoint.job.recipes.search_r1 import checkpoints
from entrypoint.job.recipes.search_r1.checkpoints import ACTOR, CRITIC, SearchR1Checkpoint
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.job.recipes.verl import command_line as verl_command_line
from entrypoint.job.recipes.verl import installed
from entrypoint.job.recipes.verl import recipe as verl
from entrypoint.job.recipes.verl.command_line import (
    HDFS,
    RESUME_MODE,
    RESUME_PATH,
    TOTAL,
    VerlCommand,
    parse,
)

NAME, MODULE = "search-r1", "search_r1"
URL, SEARCHES = "retriever.url", "do_search"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NO_JOB = (
    "ROLLCALL_JOB is not set, and ROLLCALL_RECIPE=search-r1 has nothing to train: give Search-R1's "
    "command after `rollcall up --`, or in ROLLCALL_JOB, such as "
    "`python3 -m verl.trainer.main_ppo …`"
)
WEIGHTS_ALONE = (
    "Search-R1 cannot resume: a new attempt begins with the newest weights, which are then the "
    "reference of the KL, too; optimizer, schedule and data begin anew"
)


class SearchR1(verl.AnyVerl):
    framework = "Search-R1"
    each = ""
    counts_anew = True

    def recognises(self, typed: TypedCommand) -> Match:
        if verl_command_line.is_search_r1(typed):
            return Match.OWN
        is_ppo = typed.program == ("-m", verl_command_line.MODULE)
        return Match.POSSIBLE if is_ppo else Match.NONE

    def faults(self, settings: Settings) -> Sequence[str]:
        if not settings.job:
            return (NO_JOB,)
        command = parse(settings.job)
        found = [_no_interpreter(settings, command), no_directory(settings)]
        found += needless_variables(settings)
        found += [
            f"{key}={value}: Search-R1's copy of verl has no such key, and the recipe {NAME} goes "
            "on from the newest weights itself: leave it out"
            for key in (RESUME_MODE, RESUME_PATH)
            if (value := command.value(key))
        ]
        found += verl_command_line.common_faults(command, NAME)
        found += _retriever_faults(settings, command)
        if not any(found):
            completed = _completed(settings, command, None)
            found += installed.lacks(settings, command, completed.overrides)
        return [sentence for sentence in found if sentence]

    def warnings_of(self, settings: Settings, command: VerlCommand) -> Iterator[str]:
        yield from super().warnings_of(settings, command)
        yield from installed.likely_mistakes(settings, command, fork=True)
        yield from _warnings(settings, command)

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        given = parse(settings.job)
        found = _newest(settings, given) if resume_from is not None else None
        command = _completed(settings, given, found)
        python = interpreter_for(command.interpreter, MODULE)
        env = {**command.variables, "ROLLCALL_RUN_DIR": str(settings.run_dir)}
        # its own runtime environment may have variables of the job's
        env["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        if found is not None:
            env[RESUME_FROM] = str(found.step)
        environment = for_actors(runtime_environment(settings), python)
        return JobCommand((python, *command.program, *command.overrides), env, environment)

    def latest(self, settings: Settings) -> int | None:
        found = _newest(settings, parse(settings.job))
        return found.step if found else None

    def effect(self, changed: Collection[str]) -> str:
        return f"It holds from the next step on. {WEIGHTS_ALONE}"

    def lacking_at_end(self, settings: Settings) -> Lacking:
        command = parse(settings.job)

        def lacking(end: JobEnd) -> str:
            found = _newest(settings, command)
            # its copy of verl counts on before it compares: the last step is the total - 1
            last = max(0, verl_command_line.last_step(command, end) - 1)
            return verl_command_line.steps_left(
                command, end, last, saved=found.step if found else 0, saves_last=False
            )

        return lacking

    def exported(self, settings: Settings) -> Path | None:
        found = _newest(settings, parse(settings.job))
        return found.of(ACTOR) if found else None


def _has_critic(command: VerlCommand) -> bool:
    return (command.value("algorithm.adv_estimator") or "gae") == "gae"


def _newest(settings: Settings, command: VerlCommand) -> SearchR1Checkpoint | None:
    roles = [ACTOR, CRITIC] if _has_critic(command) else [ACTOR]
    return checkpoints.newest(RECIPE.directory(settings, command), roles)


def _completed(
    settings: Settings, command: VerlCommand, found: SearchR1Checkpoint | None
) -> VerlCommand:
    """Return the command with checkpoints, weights, log and retriever as the supervision needs."""
    done = found.step if found else 0
    directory = checkpoints.directory_after(RECIPE.directory(settings, command), done)
    command = verl.saving(settings, command, directory)
    if not any(word.partition("=")[0] == HDFS for word in command.overrides):
        command = command.having(trainer__default_hdfs_dir="null")  # its default is a path
    if settings.retriever_url and command.value(URL) is None:
        command = command.having(retriever__url=verl_command_line.quoted(settings.retriever_url))
    if found is None:
        return command
    command = command.having(actor_rollout_ref__model__path=found.of(ACTOR))
    if _has_critic(command):
        command = command.having(critic__model__path=found.of(CRITIC))
    if total := command.number(TOTAL):
        command = command.having(trainer__total_training_steps=max(1, total - done))
    return command


def _retriever_faults(settings: Settings, command: VerlCommand) -> Iterator[str]:
    own, ours = command.value(URL), settings.retriever_url
    if not _searches(command):
        return
    if own and ours and own.strip("'\"") != ours:
        yield (
            f"{URL}={own} and ROLLCALL_RETRIEVER_URL={ours} contradict each other: leave {URL} out"
        )
    try:
        host = urlsplit((own or ours or "").strip("'\"")).hostname
    except ValueError as error:
        yield f"{URL}={own} is not an address of a server ({error})"
        return
    on_head = settings.retriever_command and settings.retriever_on is ServiceOn.HEAD
    if on_head and host in LOOPBACK:
        yield (
            f"ROLLCALL_RETRIEVER_ON=head starts the retriever on the head alone, and {own or ours} "
            "is the server of each node: leave ROLLCALL_RETRIEVER_ON out, or give the head's "
            "address"
        )


def _searches(command: VerlCommand) -> bool:
    return (command.value(SEARCHES) or "true").lower() != "false"


def _warnings(settings: Settings, command: VerlCommand) -> Iterator[str]:
    yield WEIGHTS_ALONE
    if command.number(TOTAL) is None:
        yield f"without {TOTAL}, a new attempt trains all epochs again: give the number of steps"
    if _searches(command) and settings.retriever_url is None:
        yield (
            "ROLLCALL_RETRIEVER_URL is not set, so the job starts whether its retriever answers or "
            "not: set it, and ROLLCALL_RETRIEVER_COMMAND on every node, to start the retriever"
        )


def _no_interpreter(settings: Settings, command: VerlCommand) -> str:
    python = interpreter_for(command.interpreter, MODULE)
    if not Path(python).is_file():
        return AbsentPython(f"{python} is not there: give the path of a Python", Path(python))
    if command.program[:1] != ("-m",) or set(NEEDS_INSTALL) & set(settings.runtime_env):
        return ""
    if has_module(python, MODULE):
        return ""
    if slow := unanswered("Search-R1", python, shutil.which(command.interpreter or "python3")):
        return slow
    others = others_with(MODULE)
    has = f", and {others[0]} has it" if others else ""
    return NotHere(
        f"{python} has no Search-R1{has}: use an image that has it, and give the path of its "
        f"Python, as in {others[0] if others else '/opt/search-r1/bin/python'} -m "
        "verl.trainer.main_ppo, or start the nodes in the directory of its repository"
    )


RECIPE = SearchR1()
