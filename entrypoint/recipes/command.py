"""Any command at all: it finds the run in its environment, and may write RUN/progress.json."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from entrypoint.failures import FailureClass
from entrypoint.recipes.base import Command
from entrypoint.settings import Settings
from trainer.assignment import Offer
from trainer.contract import Progress, RunFiles


class AnyCommand:
    tells_phases = False

    def faults(self, settings: Settings) -> Sequence[str]:
        program = settings.job[0]
        if shutil.which(program):
            return ()
        return (f"{program} is no program that this image has: give a command that it has",)

    def needs(self, settings: Settings, nodes: Sequence[Offer]) -> Sequence[str]:
        return ()

    def fitted(self, settings: Settings, nodes: Sequence[Offer]) -> Settings:
        return settings

    def resources(self, settings: Settings, nodes: Sequence[Offer]) -> None:
        return None

    def command(self, settings: Settings, resume_from: int | None) -> Command:
        env = {"ROLLCALL_RUN_DIR": str(settings.run_dir)}
        if resume_from is not None:
            env["ROLLCALL_RESUME_FROM"] = str(resume_from)
        return Command(settings.job, env)

    def latest(self, run_dir: Path) -> int | None:
        progress = Progress.read(RunFiles(run_dir).progress)
        return progress.checkpoint if progress else None

    def evidence(self, line: str) -> FailureClass | None:
        return None

    def outage(self, settings: Settings) -> float:
        return settings.service_timeout


RECIPE = AnyCommand()
