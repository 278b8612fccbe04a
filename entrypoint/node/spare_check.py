"""Runs the GPU burn now and then while this node is a spare, so that a broken one is known early.

Without a GPU nothing runs. The burn ends as soon as the node has a place: its ranks need the GPUs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from entrypoint.config.check_names import CheckName
from entrypoint.config.role import Worker
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.preflight import gpu_burn
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes.inbox import SpareUnfit

log = logging.getLogger(__name__)

Burn = Callable[[threading.Event], Finding]
"""Runs the burn until its end, or until the event is set."""


class SpareCheck:
    """`told` with whether this node is a spare starts and ends the checks."""

    def __init__(self, burn: Burn | None, seconds: float, unfit: Callable[[str], None]) -> None:
        """`burn`: None if there is nothing to check. `seconds`: pause before each burn.

        `unfit` is called with why the burn has failed.
        """
        self._burn, self._seconds, self._unfit = burn, seconds, unfit
        self._over: threading.Event | None = None
        """Ends the checks; None while the node is no spare."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.told(is_spare=False)

    def told(self, *, is_spare: bool) -> None:
        if is_spare and self._over is None and self._burn is not None:
            self._over = threading.Event()
            given = self._burn, self._over
            threading.Thread(
                target=self._check, args=given, name="spare-check", daemon=True
            ).start()
        elif not is_spare and self._over is not None:
            self._over.set()
            self._over = None

    def _check(self, burn: Burn, over: threading.Event) -> None:
        while not over.wait(self._seconds):
            finding = burn(over)
            if over.is_set():
                return
            said = f"{CheckName.GPU_BURN}: {finding.evidence}"
            if finding.verdict is Verdict.FAIL:
                self._unfit(f"{said} ({finding.remedy})" if finding.remedy else said)
                return
            log.info("this spare's GPUs are checked: %s", said)


def of_node(settings: Settings, put: Callable[[SpareUnfit], None]) -> SpareCheck:
    """Return the checks of this node, which `put` a failure.

    None run if it has no GPU, or if preflight leaves the burn out.
    """
    context = Context(Worker("", "a spare"), settings)
    off = settings.preflight is not PreflightMode.STRICT
    left_out = off or CheckName.GPU_BURN in settings.preflight_skip or bool(context.why_no_gpu)

    def burn(over: threading.Event) -> Finding:
        return gpu_burn.burn(context, over)

    def unfit(why: str) -> None:
        put(SpareUnfit(why))

    return SpareCheck(None if left_out else burn, settings.spare_check_seconds, unfit)
