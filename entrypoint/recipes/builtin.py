"""The trainer that the image carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrypoint.failures import FailureClass
from entrypoint.fork_server import node as fork_server
from entrypoint.recipes.base import Command, FilesGoneError
from entrypoint.settings import Settings
from trainer.assignment import Offer
from trainer.contract import RunFiles
from trainer.manifest import newest_checkpoint

if TYPE_CHECKING:
    from trainer.config import Config


class Builtin:
    tells_phases = True

    def faults(self, settings: Settings) -> Sequence[str]:
        from trainer.checks import data_faults, engine_faults
        from trainer.config import parse
        from trainer.flags import ConfigError

        try:
            config = parse(_arguments(settings))
        except ConfigError as error:
            return [str(fault) for fault in error.faults]
        return [*engine_faults(config), *data_faults(config)]

    def look_for_files(self, settings: Settings) -> None:
        _parsed(settings)

    def needs(self, settings: Settings, nodes: Sequence[Offer]) -> Sequence[str]:
        from trainer.resource_plan import shortfalls

        return shortfalls(_parsed(settings), nodes)

    def fitted(self, settings: Settings, nodes: Sequence[Offer]) -> Settings:
        from trainer.resource_plan import smaller

        flags = smaller(_parsed(settings), nodes)
        words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
        return replace(settings, job=(*settings.job, *words))

    def resources(self, settings: Settings, nodes: Sequence[Offer]) -> dict[str, Any] | None:
        from trainer.config import parse
        from trainer.flags import ConfigError
        from trainer.resource_plan import row

        try:
            return row(parse(_arguments(settings)), nodes)
        except ConfigError:
            return None

    def command(self, settings: Settings, resume_from: int | None) -> Command:
        return Command((fork_server.python(settings), "-m", "trainer", *_arguments(settings)))

    def latest(self, run_dir: Path) -> int | None:
        return newest_checkpoint(RunFiles(run_dir).checkpoints, checksums=False)

    def evidence(self, line: str) -> FailureClass | None:
        return None

    def outage(self, settings: Settings) -> float:
        return _parsed(settings).remote_rm_deadline


def _parsed(settings: Settings) -> Config:
    """Raises FilesGoneError."""
    from trainer.config import parse
    from trainer.flags import ConfigError, MissingFile

    try:
        return parse(_arguments(settings))
    except ConfigError as error:
        missing = [str(fault) for fault in error.faults if isinstance(fault, MissingFile)]
        if not missing:
            raise
        raise FilesGoneError("; ".join(missing)) from None


def _arguments(settings: Settings) -> list[str]:
    """The user's flags and those that follow from the settings; resuming is the rule."""
    from trainer.config import named_in

    arguments = [*settings.job, "--run_dir", str(settings.run_dir), "--load_checkpoint"]
    given = named_in(settings.job)
    if settings.reward_url and "remote_rm_url" not in given:
        arguments += ["--remote_rm_url", settings.reward_url]
    if "remote_rm_deadline" not in given:
        arguments += ["--remote_rm_deadline", f"{settings.service_timeout:g}"]
    return arguments


RECIPE = Builtin()
