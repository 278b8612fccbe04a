"""Runs this node's checks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from entrypoint.config.check_names import CheckName
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
    private,
    software,
    storage,
)
from entrypoint.preflight.check import Check, Context, Report, Result
from entrypoint.preflight.verdict import Verdict

CHECKS: tuple[Check, ...] = (
    *host.CHECKS,
    *storage.CHECKS,
    *private.CHECKS,
    *ports.CHECKS,
    *network.CHECKS,
    *software.CHECKS,
    *gpu_health.CHECKS,
    *gpu_driver.CHECKS,
    *gpu_burn.CHECKS,
    *fabric.CHECKS,
)

OF_SUPERVISOR = frozenset(
    {
        CheckName.HOST_RUN_DIR,
        CheckName.HOST_RUN_DIR_SPEED,
        CheckName.HOST_CLOCK,
        CheckName.HOST_NOFILE,
        CheckName.VERSIONS_RAY,
    }
)
"""Checks of a node that supervises an existing Ray and holds no part of the job."""


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
    context = Context(role, settings, running_pid=running_pid)
    results: dict[str, Result] = {
        check.name: Result(check.name, Verdict.SKIP, why, "", 0.0)
        for check in checks
        if (why := _left_out(check.name, settings))
    }
    for loads in (False, True):
        wave = [check for check in checks if check.loads is loads and check.name not in results]
        results |= _at_once(wave, context)
    ordered = [results[check.name] for check in checks]
    return Report(settings.preflight, ordered)


def examined_whole(settings: Settings) -> bool:
    """Return whether a node that starts has passed every preflight check."""
    return settings.preflight is PreflightMode.STRICT and not settings.preflight_skip


def _left_out(name: str, settings: Settings) -> str:
    """Why this node does not run a check; "" if it does."""
    if name in settings.preflight_skip:
        return "left out by ROLLCALL_PREFLIGHT_SKIP"
    if settings.ray_address is not None and name not in OF_SUPERVISOR:
        return "not of this node: each node of Ray is examined (ROLLCALL_RAY_ADDRESS)"
    return ""


def _at_once(checks: Sequence[Check], context: Context) -> dict[str, Result]:
    """In no longer than the longest timeout."""
    started = time.monotonic()
    answers = {check.name: check.start(context) for check in checks}
    return {
        check.name: check.result(answers[check.name], time.monotonic() - started)
        for check in checks
    }
