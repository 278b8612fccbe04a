"""Runs this node's checks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from entrypoint.config.role import Head, Worker
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.preflight import (
    fabric,
    gpu_burn,
    gpu_driver,
    gpu_health,
    host,
    network,
    ports,
    software,
    storage,
)
from entrypoint.preflight.check import Check, Context, Report, Result
from entrypoint.preflight.verdict import Verdict

CHECKS: tuple[Check, ...] = (
    *host.CHECKS,
    *storage.CHECKS,
    *ports.CHECKS,
    *network.CHECKS,
    *software.CHECKS,
    *gpu_health.CHECKS,
    *gpu_driver.CHECKS,
    *gpu_burn.CHECKS,
    *fabric.CHECKS,
)


def run_checks(
    role: Head | Worker,
    settings: Settings,
    checks: Sequence[Check] = CHECKS,
    *,
    running_pid: int | None = None,
) -> Report:
    """The report of all checks, which run at the same time; those that load the machine run last.

    No check runs if preflight is off. `running_pid`: this node's entrypoint if it runs already.
    """
    if settings.preflight is PreflightMode.OFF:
        return Report(PreflightMode.OFF)
    context, skip = Context(role, settings, running_pid=running_pid), settings.preflight_skip
    results: dict[str, Result] = {
        check.name: Result(check.name, Verdict.SKIP, "left out by ROLLCALL_PREFLIGHT_SKIP", "", 0.0)
        for check in checks
        if check.name in skip
    }
    for loads in (False, True):
        wave = [check for check in checks if check.loads is loads and check.name not in results]
        results |= _at_once(wave, context)
    ordered = [results[check.name] for check in checks]
    return Report(settings.preflight, ordered, {check.name: check.exit_code for check in checks})


def _at_once(checks: Sequence[Check], context: Context) -> dict[str, Result]:
    """In no longer than the longest timeout."""
    started = time.monotonic()
    answers = {check.name: check.start(context) for check in checks}
    return {
        check.name: check.result(answers[check.name], time.monotonic() - started)
        for check in checks
    }
