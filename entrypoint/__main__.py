"""`python -m entrypoint`, `rollcall`: one program on every node."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

INTERRUPTED = 128 + signal.SIGINT
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
try:
    from typing import NoReturn, TextIO, cast

    from contract.exit_codes import ExitCode
    from contract.files import ray_home
    from contract.files.os_errors import to_a_reader
    from contract.launch.programs import Program
    from contract.options import ConfigError, Fault
    from entrypoint.commands import cli, packages
    from entrypoint.config.partly import SettingsError
    from entrypoint.config.read import read_settings
    from entrypoint.config.recipe_registry import BUILTIN
    from entrypoint.config.settings import Settings
    from entrypoint.config.uses import Use
    from entrypoint.processes import home, programs
except KeyboardInterrupt:  # Ctrl-C, while these imports take their time
    sys.exit(INTERRUPTED)

PROGRAMS = {
    "prepare": Program.PREPARE,
    "serve-retriever": Program.RETRIEVER,
    "serve-reward": Program.SERVE_REWARD,
    "translate": Program.TRANSLATE,
}
"""Command → the program of this product that it becomes."""
OWN_MODULES = ("bundle", "demo", "init", "report")
"""Commands that read no settings of a node; each is the `main` of its module."""
STARTS_PROGRAMS = frozenset({*PROGRAMS, "up", "demo", "exec", "sft", "rm", "dpo"})


def main() -> int:
    try:
        return to_a_reader(_run)
    except KeyboardInterrupt:  # before the command listens to signals
        return INTERRUPTED
    except OSError as error:
        if not _of_output(error):
            raise
        # Python itself ends with 120 if it cannot write at the end what it still has to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        return ExitCode.RUN_DIR


def _of_output(error: OSError) -> bool:
    """Whether standard output takes no more, as a file on a full disk. Other files have names."""
    return error.filename is None and error.errno in NO_ROOM


def _run() -> int:
    words = sys.argv[1:]
    try:
        takes_command = recipe_takes_command(os.environ)
        return _do(cli.parse(words, recipe_takes_command=takes_command, is_job=_is_job))
    except (cli.UsageError, ConfigError) as error:
        from entrypoint.commands import arguments

        return arguments.fail(str(error), ExitCode.USAGE, as_json=cli.wants_json(words))


def _do(call: cli.Invocation) -> int:
    """Do what the words ask for; return the exit code. Raises ConfigError."""
    if call.command in STARTS_PROGRAMS:
        home.give(ray_home.default(os.environ))
    environ: Mapping[str, str] = {**os.environ, **call.variables}
    if call.waits_for_jobs:
        environ = {**environ, "ROLLCALL_WAIT_FOR_JOBS": "1"}
    if call.command in (*cli.REMOTE, "report") and sys.stdout.isatty():
        from entrypoint.commands.terminal import Terminal

        sys.stdout = cast(TextIO, Terminal(sys.stdout))
    if call.command in (*PROGRAMS, *OWN_MODULES) and (why := packages.lacking(call.command)):
        raise cli.UsageError(why)
    if call.command in PROGRAMS:
        _become(PROGRAMS[call.command], *call.arguments)
    if call.command in OWN_MODULES:
        module = importlib.import_module(f"entrypoint.commands.{call.command}")
        return cast(int, module.main(call.arguments))
    match call.command:
        case "help" | "version" | "completion":
            return _print_text(call)
        case "exec":
            _exec(call.arguments)
        case "sft" | "rm" | "dpo" as stage:  # its help: else the stage is a job of `up`
            _become(Program.SUPERVISED, stage, *call.arguments)
        case "up" | "plan" | "doctor":
            return _on_this_node(call, environ)
    return _ask(call, environ)


def _print_text(call: cli.Invocation) -> int:
    from entrypoint.commands import arguments, completion

    if call.command == "completion":
        print(completion.script(), end="")
    else:
        print(arguments.version() if call == cli.VERSION else _help(call.arguments))
    return ExitCode.FINISHED


def _exec(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], programs.unshadowed(command))
    except OSError as error:
        why = f"{command[0]} cannot be executed: {error.strerror}"
        raise cli.UsageError(why) from None


def _on_this_node(call: cli.Invocation, environ: Mapping[str, str]) -> int:
    """`up`, `plan` and `doctor`, which read the settings of a node."""
    said, recipe, fault = "", None, None
    from entrypoint.commands import typed_job

    if call.command == "doctor":
        recipe = typed_job.recipe_of_variables(environ)
    else:
        try:
            typed = typed_job.read(environ, call.arguments)
        except ConfigError as error:
            error = _with_those_of_the_machine(error, environ)
            if call.command == "up" and not _is_worker(environ):
                raise error from None  # a worker has no job
            typed, fault = typed_job.TypedJob(environ, call.arguments), error
        environ, said, recipe = typed.environ, typed.said, typed.recipe
        call = replace(call, arguments=typed.arguments)
        for warning in typed.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    if call.command == "plan":
        from entrypoint.commands import plan

        settings_or_error = fault or _settings_or_error(environ, call.arguments, recipe)
        if call.stages_of:
            from entrypoint.commands import planned_stages

            return planned_stages.main(settings_or_error, call)
        return plan.main(
            settings_or_error, call.as_json, call.planned, cost=call.shows_cost, said=said
        )
    from entrypoint.commands import node_shell

    if call.command != "doctor" and (why := packages.lacking("up")):
        raise cli.UsageError(why)
    use = Use.MACHINE if call.command == "doctor" else Use.START
    try:
        settings = read_settings(environ, call.arguments, recipe, use)
    except SettingsError as error:
        raise _with_those_of_the_job(error, error.settings, call.command) from None
    if said:
        print(said, file=sys.stderr)
    try:
        _refuse_wrong_addresses(settings)
    except ConfigError as error:
        raise _with_those_of_the_job(error, settings, call.command) from None
    if why := node_shell.lacking(environ):
        print(why, file=sys.stderr)
    if call.command == "doctor":
        from entrypoint.commands import doctor

        return doctor.main(settings, call.as_json)
    from entrypoint.commands import up

    return up.up(settings, bare=not sys.argv[1:])


def _with_those_of_the_machine(error: ConfigError, environ: Mapping[str, str]) -> ConfigError:
    """Return a fault of what was typed as the job, with those of variables that need no job."""
    try:
        read_settings(environ, use=Use.MACHINE)
    except ConfigError as other:
        return ConfigError([*error.faults, *other.faults])
    return error


def _with_those_of_the_job(error: ConfigError, settings: Settings, command: str) -> ConfigError:
    """Return the faults of a node's settings, with those of its job's words."""
    if command != "up":
        return error
    from entrypoint.commands import arguments
    from entrypoint.job.recipes import base as recipes

    words = arguments.hinted(recipes.faults_beside(settings), command)
    return ConfigError([*error.faults, *(Fault("job", None, one, "") for one in words)])


def _is_worker(environ: Mapping[str, str]) -> bool:
    from entrypoint.config import role

    return role.is_worker(read_settings(environ, use=Use.ASK))


def _is_job(words: Sequence[str]) -> bool:
    """Return whether a recipe knows the program, alone or in a script of a shell."""
    from entrypoint.job.recipes.recognise import recognised

    return recognised(words, None).is_known


def _refuse_wrong_addresses(settings: Settings) -> None:
    from entrypoint.config.role import decide
    from entrypoint.machine import address

    is_head = decide(settings).name == "head"
    if fault := address.second_head(settings) or (is_head and address.bind_fault(settings)):
        raise ConfigError([fault])


def _become(module: Program, *arguments: str) -> NoReturn:
    """Replace this process by a program of this product, which Ctrl-C ends as it ends others."""
    interruptible = programs.program(Program.INTERRUPTIBLE, module, *arguments)
    os.execv(sys.executable, interruptible)


def _help(command: Sequence[str]) -> str:
    from entrypoint.commands import arguments

    return arguments.parser(command[0]).format_help() if command else cli.help_text()


def _ask(call: cli.Invocation, environ: Mapping[str, str]) -> int:
    """A command that asks the head, or reads the run directory."""
    from entrypoint.commands import (
        arguments,
        ask_head,
        asked_run,
        events,
        jobs,
        logs,
        node_shell,
        page,
        pipeline,
        rotate_token,
    )
    from entrypoint.commands.head_client import NoAnswerError, NoRunError
    from entrypoint.run import errors

    options = arguments.parse(call.command, call.arguments)
    try:
        asked = asked_run.of(call.command, options, environ)
    except node_shell.UnnamedRunError as error:
        return arguments.fail(str(error), ExitCode.USAGE, as_json=options.json)
    if asked.note:
        print(asked.note, file=sys.stderr)
    answers: dict[str, Callable[..., int]] = {
        "submit": jobs.submit,
        "pipeline": pipeline.pipeline,
        "list": jobs.list_jobs,
        "status": ask_head.status,
        "wait": ask_head.wait,
        "open": partial(page.open_page, found=asked.found),
        "logs": logs.logs,
        "events": events.events,
        "stop": ask_head.stop,
        "rotate-token": rotate_token.rotate_token,
    }
    try:
        settings = read_settings(asked.environ, use=Use.ASK)
        if asked.is_guessed and asked.is_named:  # by an address
            settings = node_shell.for_address(settings)
        return answers[call.command](settings, options)
    except NoAnswerError as error:
        sentence, code = str(error), error.exit_code
        if asked.lack:
            sentence, code = asked.lack, ExitCode.USAGE
        elif isinstance(error, NoRunError) and (found := node_shell.lives_beside(asked.environ)):
            sentence = f"no setting names a run: {found}"
        return arguments.fail(sentence, code, as_json=options.json)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or _of_output(error):
            raise
        return arguments.fail(errors.describe(error), ExitCode.RUN_DIR, as_json=options.json)
    except KeyboardInterrupt:
        return INTERRUPTED


def _settings_or_error(
    environ: Mapping[str, str], job: Sequence[str], recipe: str | None
) -> Settings | ConfigError:
    try:
        return read_settings(environ, job, recipe)
    except ConfigError as error:
        return error


def recipe_takes_command(environ: Mapping[str, str]) -> bool:
    return environ.get("ROLLCALL_RECIPE", "").strip().lower() not in ("", BUILTIN)


if __name__ == "__main__":
    sys.exit(main())
