"""What the head's supervisor, rendezvous and attempts share."""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.progress import Progress
from contract.run_dir import RunFiles
from entrypoint.cluster.server import ControlServer
from entrypoint.config.settings import Settings
from entrypoint.job import command_identity
from entrypoint.job.recipes.base import Recipe
from entrypoint.processes.inbox import Inbox
from entrypoint.run.journal import Journal


@dataclass(slots=True)
class RunContext:
    settings: Settings
    recipe: Recipe
    journal: Journal
    control: ControlServer
    inbox: Inbox
    job: str = field(init=False, default="")
    """The submitted job's id; "" if the head runs a job of its own."""
    fingerprint: str = field(init=False)
    """Of the command, with its --config file as it was at the start: all attempts have the same."""

    def __post_init__(self) -> None:
        self.fingerprint = command_identity.fingerprint(self.settings)

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.settings.run_dir)

    def progress(self) -> Progress | None:
        """The run's newest progress; None before its first. Raises OSError."""
        return Progress.read(self.files.progress)
