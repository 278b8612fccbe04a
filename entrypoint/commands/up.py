"""`up`: this node from its job's faults and preflight to its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

from contract.exit_codes import ExitCode
from contract.files import notice
from contract.options import ConfigError, Fault, fail
from contract.run_dir import RunFiles
from entrypoint import console
from entrypoint.commands import cli
from entrypoint.config.durations import NEVER
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.role import Head, Worker, decide, warnings
from entrypoint.config.settings import Settings
from entrypoint.job.found_checkpoints import has_begun
from entrypoint.job.recipes import base as recipes
from entrypoint.net import node_claims
from entrypoint.node import heritage, roles, unfit_report
from entrypoint.preflight.check import Report
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.show import failed_names, keep_report, not_well, say_report
from entrypoint.processes.inbox import Inbox
from entrypoint.run import errors, lease, unfit_head_note

NO_JOB = (
    "no job is given: give its flags after `rollcall up` or in ROLLCALL_JOB. `rollcall init` "
    "writes a run.yaml: then `rollcall up --config run.yaml`. For a cluster that "
    "waits for jobs, start every node with `rollcall up --wait-for-jobs`, and bring jobs with "
    "`rollcall submit`."
)


def up(settings: Settings, *, bare: bool = False) -> int:
    """Run this node from preflight to exit. `bare`: nothing at all was typed."""
    role = decide(settings)
    if leader := heritage.leader(settings) if isinstance(role, Head) else "":
        settings = heritage.as_worker(settings, leader)  # before preflight: it needs fewer ports
        role = decide(settings)
    is_head = isinstance(role, Head)
    own_job = is_head and not settings.waits_for_jobs
    if own_job and (problem := _faults_of_job(settings, bare=bare)):
        return fail(problem)
    tried = recipes.TriedCode()
    if own_job and settings.check_code and not _has_begun(settings):
        tried = recipes.load(settings.recipe).try_code(settings)
    if tried.faults:
        return fail("\n".join(tried.faults))
    console.set_up(settings)
    if leader:
        console.log.warning(roles.JOINS, leader)
    _say_notes(settings, tried, recipes.untold(settings) if own_job else ())
    inbox = _listening(settings)
    if is_head:
        unfit_head_note.forget(settings)
    claim = node_claims.of(settings.node_name, *settings.worker_ports).hold()
    report = run_checks(role, settings)
    say_report(report, console.say_check, on_terminal=console.draws())
    refused = _is_led_by_another(settings) if is_head else ""
    if report.exit_code != ExitCode.FINISHED:
        _say_unfit(settings, role, report, to_workers=not refused)
        return report.exit_code
    if refused:  # before it writes to the logs of that head's run
        console.log.error("%s", refused)
        return ExitCode.RUN_DIR
    console.log_to_file(settings, is_head=is_head)
    try:
        keep_report(report, settings)
    except OSError as error:
        console.log.warning("no report of preflight is kept: %s", errors.describe(error))
    findings = not_well(report, settings.secrets)
    with claim or nullcontext():
        return roles.serve(settings, role, findings, inbox)


def _faults_of_job(settings: Settings, *, bare: bool) -> str:
    """Return what is wrong with the job's words; "" if nothing is. Prints the help if `bare`."""
    faults = recipes.load(settings.recipe).faults(settings)
    if not faults:
        return ""
    lacks_a_job = RECIPES[settings.recipe].may_lack_a_job and not settings.job
    if lacks_a_job and bare:
        print(cli.help_text(), end="\n\n", flush=True)
        return NO_JOB
    from entrypoint.commands import arguments  # only a wrong job needs it

    first = [NO_JOB] if lacks_a_job else []
    return "\n".join([*first, *arguments.hinted(faults, "up")])


def _has_begun(settings: Settings) -> bool:
    """Whether earlier attempts have run the user's code; False if the run directory is away."""
    try:
        return has_begun(settings)
    except OSError:
        return False


def _say_notes(settings: Settings, tried: recipes.TriedCode, untold: Iterable[str]) -> None:
    for line in tried.lines:
        console.log.info("tried: %s", line)
    for line in untold:
        console.log.info("note: %s", line)
    for line in (*warnings(settings), *tried.warnings):
        console.log.warning("%s", line)


def _listening(settings: Settings) -> Inbox:
    """Return what hears signals and the notice of preemption. Raises ConfigError."""
    inbox = Inbox()
    inbox.listen_to_signals()
    if path := settings.preempt_file:
        if problem := notice.unusable(path):
            raise ConfigError([Fault("ROLLCALL_PREEMPT_FILE", str(path), problem, notice.REMEDY)])
        inbox.listen_to_file(path)
    return inbox


def _is_led_by_another(settings: Settings) -> str:
    """Return that a living head of this machine has the run; "" if this node may lead or join."""
    leases = RunFiles(settings.run_dir).leases
    try:
        if settings.head_failover == NEVER or not lease.moved_to(leases):
            lease.Lease(leases).refuse_living()
    except lease.HeldError as error:
        return str(error)
    except OSError:  # the lease itself says why
        pass
    return ""


def _say_unfit(
    settings: Settings, role: Head | Worker, report: Report, *, to_workers: bool
) -> None:
    """Log which checks have failed; tell the head, or as the head `to_workers` of the run."""
    failed = "this node does not start: %s failed (ROLLCALL_PREFLIGHT=strict)"
    console.log.error(failed, failed_names(report))
    reasons = tuple(f"{result.name}: {result.evidence}" for result in report.fails)
    if isinstance(role, Worker):
        unfit_report.report(settings, reasons)
    elif to_workers:
        unfit_head_note.tell(settings, report.exit_code, "; ".join(reasons))
