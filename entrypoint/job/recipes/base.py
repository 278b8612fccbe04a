"""How one framework is launched, resumed and watched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from contract.resources import Offer
from entrypoint.config.settings import Settings
from entrypoint.job.failures.classes import FailureClass


@dataclass(frozen=True, slots=True)
class Command:
    """What to run on the head, as a Ray job."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class FilesGoneError(Exception):
    """Files that the job's arguments name, and that were there as the head started, cannot be read
    now; a sentence for each."""


class ArgumentsError(Exception):
    """What the job's arguments name, as a file of flags, has a fault that was not there as the head
    started; a sentence for each."""


class Recipe(Protocol):
    """Any question about the arguments may raise FilesGoneError and ArgumentsError, but for
    `faults`."""

    tells_phases: bool
    """Whether it says which part of a step is over (`RUN/.phase`)."""

    def faults(self, settings: Settings) -> Sequence[str]:
        """What is wrong with the job's arguments, a sentence each; asked before all starts."""
        ...

    def look_for_files(self, settings: Settings) -> None:
        """Raises FilesGoneError, and ArgumentsError."""
        ...

    def warnings(self, settings: Settings) -> Sequence[str]:
        """What the job will warn of as it starts, a sentence each; asked where there is no fault,
        for `plan`."""
        ...

    def needs(self, settings: Settings, nodes: Sequence[Offer]) -> Sequence[str]:
        """What these nodes lack for the job, a sentence each; asked before it is submitted."""
        ...

    def fitted(self, settings: Settings, nodes: Sequence[Offer]) -> Settings:
        """The settings with a job that fits these nodes, fewer than were asked for; as they are
        where the job fits them, or cannot be made to."""
        ...

    def resources(self, settings: Settings, nodes: Sequence[Offer]) -> Mapping[str, Any] | None:
        """Where the job's processes would lie on these nodes, for `plan`; None where unknown."""
        ...

    def command(self, settings: Settings, resume_from: int | None) -> Command:
        """The job's command line and the variables that it needs on top of the node's."""
        ...

    def begins_at(self, settings: Settings) -> int | None:
        """The step that the arguments name to go on from; None: the newest, or none."""
        ...

    def going_on(self, settings: Settings) -> Settings:
        """The settings with a job that goes on from its newest step, for one that has begun."""
        ...

    def latest(self, run_dir: Path) -> int | None:
        """Step of the newest checkpoint that the framework can resume from."""
        ...

    def failure_in(self, line: str) -> FailureClass | None:
        """What a line of the job's log points to, beyond the signs common to all frameworks."""
        ...

    def effect(self, changed: Collection[str]) -> str:
        """In a sentence or two, what of a command takes effect that is another than the run was
        begun with. `changed`: names of the options that differ, as they were given."""
        ...

    def service_outage(self, settings: Settings) -> float:
        """For how many seconds the job itself waits for a service that is down."""
        ...


def load(name: str) -> Recipe:
    """The recipe of that name; Settings admits only names that exist."""
    module = import_module(f"entrypoint.job.recipes.{name.replace('-', '_')}")
    return cast(Recipe, module.RECIPE)
