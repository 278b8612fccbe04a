"""How one framework is launched, resumed and watched."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, ClassVar, Self, cast

from contract.launch.shell_wrapping import no_effect
from contract.resources import NodeResources
from entrypoint.config.partly import PartlyRead
from entrypoint.config.role import is_worker
from entrypoint.config.settings import Settings
from entrypoint.job import told_numbers
from entrypoint.job.job_end import Lacking
from entrypoint.job.recipes.typed_command import Match, TypedCommand
from entrypoint.run.failure_classes import FailureClass

JUDGED_BY = (
    *("ray_worker", "ray_address", "expected_workers", "recipe", "job", "waits_for_jobs"),
    *("runtime_env", "step_pattern", "checkpoints", "resume_args", "wandb_api_key", "run_dir"),
    *("storage", "reward_url", "reward_command", "reward_on"),
    *("retriever_url", "retriever_command", "retriever_on"),
)
"""Fields of Settings that a recipe may read to find the faults of a job."""


@dataclass(frozen=True, slots=True)
class JobCommand:
    """What to run on the head, as a Ray job."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Ray's runtime environment. A `working_dir` of this machine is an archive."""


class AbsentFile(str):
    """A fault that ends once `path` is there, which `flag` names."""

    __slots__ = ("flag", "path")

    path: Path
    flag: str

    def __new__(cls, sentence: str, path: Path, flag: str = "") -> Self:
        fault = super().__new__(cls, sentence)
        fault.path, fault.flag = path.absolute(), flag
        return fault


def awaits(fault: str, directories: Iterable[Path]) -> bool:
    """Return whether the fault is that a file in one of these directories is not there."""
    return isinstance(fault, AbsentFile) and any(
        fault.path.is_relative_to(directory.absolute()) for directory in directories
    )


class NotHere(str):
    """A fault of this machine alone: other nodes may have the program that it lacks."""

    __slots__ = ()


class AbsentPython(AbsentFile, NotHere):
    """A Python is not at the path that the job names."""

    __slots__ = ()


class UnknownFlag(str):
    """A fault that no job of the recipe has the flag."""

    __slots__ = ("flag",)

    flag: str

    def __new__(cls, sentence: str, flag: str) -> Self:
        fault = super().__new__(cls, sentence)
        fault.flag = flag
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
    says_remedy: bool = False
    """Whether `lacking` says what helps."""
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
class TriedCode:
    """What the user's own code did when it was run on the first rows of the data."""

    lines: tuple[str, ...] = ()
    """A completion and its score each."""
    faults: tuple[str, ...] = ()
    """A sentence each: the job would fail."""
    warnings: tuple[str, ...] = ()
    unended_import: bool = False
    """One warns that the import of the code's file did not end, so the job may not start."""


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


class Recipe(ABC):
    """What is known of one framework. What most frameworks have in common is the default.

    Methods that take settings may raise FilesGoneError and ArgumentsError, except `faults`.
    """

    runs_any_program: ClassVar[bool] = False
    """What says how any program is read, such as ROLLCALL_STEP_PATTERN, is meant for its jobs."""
    framework: ClassVar[str] = ""
    """Whose commands it knows, as people write the name."""
    tells_phases: ClassVar[bool] = False
    """The framework reports each finished part of a step in `RUN/.phase`."""
    writes_metrics: ClassVar[bool] = False
    """The framework itself writes `RUN/metrics.jsonl`; else its rows are made from the log."""
    counts_anew: ClassVar[bool] = False
    """A resumed job's log begins with step 1: the steps of its checkpoint are added."""
    model_flags: ClassVar[tuple[str, ...]] = ()
    """Flags, or keys of overrides, that name the trained model."""
    output_flags: ClassVar[tuple[str, ...]] = ()
    """Flags that put the trained model elsewhere than into RUN/hf."""
    less_placement: ClassVar[str] = "Start fewer processes on each node"
    """What to change if the nodes cannot hold the job."""

    def may_assume(self, fault: str) -> bool:
        """Return whether a fault is of data whose columns `assuming` can say."""
        return False

    def assuming(self, columns: Collection[str]) -> Recipe:
        """Return the recipe for a plan whose data sets need not be on this machine.

        `columns`: those that the data sets have; none: they must be here.
        """
        return self

    def shown(self, typed: TypedCommand) -> str:
        """Return what a command that the recipe knows is, for people."""
        return f"a command of {self.framework}"

    @abstractmethod
    def recognises(self, typed: TypedCommand) -> Match:
        """Return how well the recipe knows a submitted command."""

    def is_translated(self, typed: TypedCommand) -> bool:
        """Return whether `rollcall translate` takes the command, which the recipe recognises."""
        return False

    @abstractmethod
    def faults(self, settings: Settings) -> Sequence[str]:
        """Return the faults of the job's arguments, a sentence each, before anything starts.

        A fault that is only that a file is not there is an AbsentFile; one of a flag that no job
        has is an UnknownFlag.
        """

    def try_code(self, settings: Settings) -> TriedCode:
        """Return what the job's reward function and environment do, in a process of their own.

        It is for settings without faults. A recipe that cannot run them tries nothing.
        """
        return TriedCode()

    @abstractmethod
    def look_for_files(self, settings: Settings) -> None:
        """Raises FilesGoneError, and ArgumentsError."""

    def warnings(self, settings: Settings) -> Sequence[str]:
        """Return the warnings of the job, for `plan` and the journal."""
        return ()

    def notes(self, settings: Settings) -> Sequence[str]:
        """Return a sentence for each thing that the data decide, or that is not seen here."""
        return ()

    def hub_notes(self, settings: Settings) -> Sequence[str]:
        """Return a sentence for each model and data set of the hub, which a plan does not ask."""
        return ()

    def steps(self, settings: Settings) -> tuple[int | None, str]:
        """Return the steps of the whole job and what they come from, before it starts.

        None and why if they are not known; no reason if the framework alone knows them.
        """
        return None, ""

    def fitted(self, settings: Settings, nodes: Sequence[NodeResources]) -> Settings:
        """Return settings whose job fits these nodes, which are fewer than requested.

        Returns the same settings if the job fits already, or cannot be made to fit.
        """
        return settings

    def placed(self, settings: Settings, nodes: Sequence[NodeResources]) -> PlacedJob:
        """Return the job on these nodes.

        Raises FilesGoneError, unless the nodes cannot hold the job whatever the files are.
        """
        return PlacedJob(settings=settings)

    @abstractmethod
    def command(self, settings: Settings, resume_from: int | None) -> JobCommand:
        """Return the job's command line and the variables to add to the node's."""

    def begins_at(self, settings: Settings) -> int | None:
        """Return the step to resume from that the arguments name; None if they name none."""
        return None

    def going_on(self, settings: Settings) -> Settings:
        """Return settings whose job resumes from its newest step, for a job that has begun."""
        return settings

    @abstractmethod
    def latest(self, settings: Settings) -> int | None:
        """Return the step of the newest checkpoint that the framework can resume from."""

    @abstractmethod
    def step_pattern(self, settings: Settings) -> re.Pattern[str] | None:
        """Return what a step looks like in the job's log; None if the log tells no steps."""

    def metrics_in(self, text: str, groups: Mapping[str, float]) -> Mapping[str, float]:
        """Return the numbers of the job that a line of its log tells, by their names there.

        `groups`: the numbers in the groups of the step's pattern; {} if the line tells no step.
        """
        return told_numbers.of_groups(groups) | told_numbers.of_dict(text)

    def failure_in(self, line: str) -> FailureClass | None:
        """Return the failure class that a line of the framework's own log points to."""
        return None

    @abstractmethod
    def less_memory(self, settings: Settings) -> MemoryAdvice:
        """Return what to change in the job if a GPU or a node was out of memory."""

    @abstractmethod
    def effect(self, changed: Collection[str]) -> str:
        """Say what takes effect of a command that differs from the one that began the run.

        `changed`: names of the options that differ.
        """

    def models(self, settings: Settings) -> Mapping[str, str]:
        """Map the job's flags that name models to a directory, or a name on the hub, each."""
        return {}

    def model_name(self, words: Sequence[str]) -> str:
        """Return the last part of the trained model's name in the job's words; "" without one."""
        for number, word in enumerate(words):
            flag, equals, value = word.partition("=")
            if flag in self.model_flags:
                value = value if equals else "".join(words[number + 1 : number + 2])
                return PurePath(value.strip("'\"")).name  # Hydra's values may have quotes
        return ""

    def flags(self, settings: Settings) -> Mapping[str, str]:
        """Return the flags of the job and of its files, as given; {} if its words say them."""
        return {}

    def model_place(self, settings: Settings) -> Path | None:
        """Return where the framework itself writes the model of a finished job; None: unknown."""
        return None

    def exported(self, settings: Settings) -> Path | None:
        """Return the Hugging Face model that a finished job has left elsewhere than in RUN/hf.

        None if there is none, or if the framework itself writes to RUN/hf. Raises OSError.
        """
        return None

    def without_model(self, settings: Settings) -> str:
        """Return why a finished job leaves no RUN/hf; "" if it leaves one, or nobody can know."""
        flags = [word.partition("=")[0] for word in settings.job]
        moved = next((flag for flag in flags if flag in self.output_flags), None)
        return f"{moved} puts the model elsewhere: leave that flag out" if moved else ""

    @abstractmethod
    def lacking_at_end(self, settings: Settings) -> Lacking:
        """Return what tells whether a job that ended with exit code 0 has finished.

        Called with the attempt's settings before its job starts.
        """

    def service_outage(self, settings: Settings) -> float:
        """Return for how many seconds the job itself waits for a service that is down."""
        return settings.service_timeout


def tells_steps(recipe: Recipe, settings: Settings) -> bool:
    """Return whether the trainer, or the job's log, tells steps by itself."""
    return recipe.tells_phases or recipe.step_pattern(settings) is not None


def saves_itself(recipe: Recipe, settings: Settings) -> bool:
    """Return whether nobody but the job knows what it saves, and from where it goes on.

    It may still tell the step of a checkpoint in progress.json.
    """
    return recipe.runs_any_program and settings.checkpoints is None and not settings.resume_args


def warnings(recipe: Recipe, placed: PlacedJob) -> tuple[str, ...]:
    """Return the warnings of a job on its nodes, each once. Raises FilesGoneError."""
    settings = placed.settings
    around = no_effect(settings.around_job, submitted=settings.waits_for_jobs)
    return tuple(dict.fromkeys((*around, *placed.warnings, *recipe.warnings(settings))))


def load(name: str) -> Recipe:
    """Return the recipe of that name; settings allow only names that exist."""
    module = import_module(f"entrypoint.job.recipes.{name.replace('-', '_')}.recipe")
    return cast(Recipe, module.RECIPE)


def untold(settings: Settings) -> Sequence[str]:
    """Return what nobody has told of a job that any program may be, for `up` and `submit`."""
    recipe = load(settings.recipe)
    return recipe.notes(settings) if recipe.runs_any_program else ()


def faults_beside(settings: Settings) -> Sequence[str]:
    """Return the faults of a head's job whose settings have faults; none if it depends on those."""
    if isinstance(settings, PartlyRead):
        if not settings.unusable.isdisjoint(JUDGED_BY):
            return ()
        settings = settings.plain
    if settings.waits_for_jobs or is_worker(settings) or not settings.job:
        return ()
    return load(settings.recipe).faults(settings)


def refusal(settings: Settings, nodes: Sequence[NodeResources]) -> str:
    """Return why the nodes cannot hold the job, whatever is in files that are still to be written.

    Returns "" if they can, or may.
    """
    try:
        return load(settings.recipe).placed(settings, nodes).refusal
    except (FilesGoneError, ArgumentsError):
        return ""
