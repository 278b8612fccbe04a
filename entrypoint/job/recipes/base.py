"""How one framework is launched, resumed and watched."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self, cast

from contract.resources import NodeResources
from entrypoint.config.settings import Settings
from entrypoint.job.failures.classes import FailureClass
from entrypoint.job.job_end import Lacking


@dataclass(frozen=True, slots=True)
class JobCommand:
    """What to run on the head, as a Ray job."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Ray's runtime environment. A `working_dir` of this machine is an archive."""


class AbsentFile(str):
    """A fault that ends once `path` is there."""

    __slots__ = ("path",)

    path: Path

    def __new__(cls, sentence: str, path: Path) -> Self:
        fault = super().__new__(cls, sentence)
        fault.path = path.absolute()
        return fault


class FilesGoneError(Exception):
    """Files named by the job's arguments could be read when the head started, and cannot now.

    The message has a sentence for each.
    """


class ArgumentsError(Exception):
    """A file named by the job's arguments, such as a file of flags, has become invalid.

    The message has a sentence for each fault.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """A job on certain nodes."""

    settings: Settings
    """Their job has a complete layout; what the user's arguments say of the layout stays."""
    lacking: tuple[str, ...] = ()
    """What the nodes lack for the job, a sentence each."""
    layout: Mapping[str, Any] | None = None
    """How the job's processes are placed, for `plan`; None if the recipe does not say it.

    `chosen` has the flags that the arguments left open and the reasons; `idle` names GPUs without
    work.
    """
    key: str = ""
    """Names the choice among those of the run."""
    warnings: tuple[str, ...] = ()
    """What the choice changes beside the placement, and words of the job that it leaves out."""

    @property
    def refusal(self) -> str:
        """Why the nodes cannot hold the job; "" if they can."""
        return f"the nodes cannot hold the job: {'; '.join(self.lacking)}" if self.lacking else ""


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """What to change in a job that was out of memory, in the words of its framework."""

    gpu: str
    """If it was a GPU, such as `lower --batch_size`."""
    node: str
    """If it was a node."""

    def after(self, failure: FailureClass) -> str:
        """Return a clause for this failure class; "" if the job was not out of memory."""
        if failure is FailureClass.GPU_OOM:
            return self.gpu
        if failure is FailureClass.HOST_OOM:
            return f"give the node more memory (for /dev/shm too), or {self.node}"
        return ""


class Recipe(Protocol):
    """Methods that take settings may raise FilesGoneError and ArgumentsError, except `faults`."""

    tells_phases: bool
    """The framework reports each finished part of a step in `RUN/.phase`."""
    counts_anew: bool
    """A resumed job's log begins with step 1: the steps of its checkpoint are added."""

    def faults(self, settings: Settings) -> Sequence[str]:
        """Return the faults of the job's arguments, a sentence each, before anything starts.

        A fault that is only that a file is not there is an AbsentFile.
        """
        ...

    def look_for_files(self, settings: Settings) -> None:
        """Raises FilesGoneError, and ArgumentsError."""
        ...

    def warnings(self, settings: Settings) -> Sequence[str]:
        """Return the warnings of the job, for `plan` and the journal."""
        ...

    def fitted(self, settings: Settings, nodes: Sequence[NodeResources]) -> Settings:
        """Return settings whose job fits these nodes, which are fewer than requested.

        Returns the same settings if the job fits already, or cannot be made to fit.
        """
        ...

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        """Return the job on these nodes.

        Raises FilesGoneError, unless the nodes cannot hold the job whatever the files are.
        """
        ...

    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        """Return the job's command line and the variables to add to the node's."""
        ...

    def begins_at(self, settings: Settings) -> int | None:
        """Return the step to resume from that the arguments name; None if they name none."""
        ...

    def going_on(self, settings: Settings) -> Settings:
        """Return settings whose job resumes from its newest step, for a job that has begun."""
        ...

    def latest(self, settings: Settings) -> int | None:
        """Return the step of the newest checkpoint that the framework can resume from."""
        ...

    def step_pattern(self, settings: Settings) -> re.Pattern[str] | None:
        """Return what a step looks like in the job's log; None if the log tells no steps."""
        ...

    def failure_in(self, line: str) -> FailureClass | None:
        """Return the failure class that a line of the framework's own log points to."""
        ...

    def less_memory(self, settings: Settings) -> MemoryAdvice:
        """Return what to change in the job if a GPU or a node was out of memory."""
        ...

    def effect(self, changed: Collection[str]) -> str:
        """Say what takes effect of a command that differs from the one that began the run.

        `changed`: names of the options that differ.
        """
        ...

    def models(self, settings: Settings) -> Mapping[str, str]:
        """Map the job's flags that name models to a directory, or a name on the hub, each."""
        ...

    def model_place(self, settings: Settings) -> Path | None:
        """Return where the framework itself writes the model of a finished job; None: unknown."""
        ...

    def exported(self, settings: Settings) -> Path | None:
        """Return the Hugging Face model that a finished job has left elsewhere than in RUN/hf.

        None if there is none, or if the framework itself writes to RUN/hf. Raises OSError.
        """
        ...

    def without_model(self, settings: Settings) -> str:
        """Return why a finished job leaves no RUN/hf; "" if it leaves one, or nobody can know."""
        ...

    def lacking_at_end(self, settings: Settings) -> Lacking:
        """Return what tells whether a job that ended with exit code 0 has finished.

        Called with the attempt's settings before its job starts.
        """
        ...

    def service_outage(self, settings: Settings) -> float:
        """Return for how many seconds the job itself waits for a service that is down."""
        ...


def warnings(recipe: Recipe, placed: PlacedJob) -> tuple[str, ...]:
    """Return the warnings of a job on its nodes, each once. Raises FilesGoneError."""
    return tuple(dict.fromkeys((*placed.warnings, *recipe.warnings(placed.settings))))


def load(name: str) -> Recipe:
    """Return the recipe of that name; settings allow only names that exist."""
    module = import_module(f"entrypoint.job.recipes.{name.replace('-', '_')}")
    return cast(Recipe, module.RECIPE)


def refusal(settings: Settings, nodes: Sequence[NodeResources]) -> str:
    """Return why the nodes cannot hold the job, whatever is in files that are still to be written.

    Returns "" if they can, or may.
    """
    try:
        return load(settings.recipe).placed(settings, nodes).refusal
    except (FilesGoneError, ArgumentsError):
        return ""
