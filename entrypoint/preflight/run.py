"""Runs this node's checks."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence

from entrypoint.preflight import gpu, host, ports, storage, versions
from entrypoint.preflight.check import Check, Context, Report, Result, Verdict
from entrypoint.role import Head, Worker
from entrypoint.settings import PreflightMode, Settings

CHECKS: tuple[Check, ...] = (
    *host.CHECKS,
    *storage.CHECKS,
    *ports.CHECKS,
    *versions.CHECKS,
    *gpu.CHECKS,
)


def run_checks(role: Head | Worker, settings: Settings, checks: Sequence[Check] = CHECKS) -> Report:
    """Every check at once, in no longer than the longest timeout; none where preflight is off."""
    if settings.preflight is PreflightMode.OFF:
        return Report(PreflightMode.OFF)
    context, started = Context(role, settings), time.monotonic()
    skip = settings.preflight_skip
    answers = {check.name: check.start(context) for check in checks if check.name not in skip}
    results = [
        check.result(answers[check.name], time.monotonic() - started)
        if check.name in answers
        else Result(check.name, Verdict.SKIP, "left out by ROLLCALL_PREFLIGHT_SKIP", "", 0.0)
        for check in checks
    ]
    results += unknown_names(skip, [check.name for check in checks])
    return Report(settings.preflight, results, {check.name: check.exit_code for check in checks})


def unknown_names(skip: frozenset[str], names: Sequence[str]) -> list[Result]:
    """A warning for each name in ROLLCALL_PREFLIGHT_SKIP that no check has."""
    results = []
    for name in sorted(skip - set(names)):
        close = difflib.get_close_matches(name, names, n=1)
        evidence = f"ROLLCALL_PREFLIGHT_SKIP names {name}, and no check is called so"
        remedy = f"give {close[0]}" if close else f"give one of {', '.join(names)}"
        results.append(Result("preflight.skip", Verdict.WARN, evidence, remedy, 0.0))
    return results
