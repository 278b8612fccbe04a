"""Flags as fields of frozen dataclasses: each is declared once, beside the type that uses it.

A command is a dataclass whose fields are flags, and settings whose fields are flags (`composed`).
Standard library only: `--help` must answer at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast, get_type_hints

from contract import options
from contract.options import Option, declared_in
from env.user_code import FUNCTION

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

OVER = "--"
"""A word of the command line: flags after it win over flags before it. There a launcher puts what
it knows better than the author of the command."""


class Group(StrEnum):
    """A concern of flags, in the order of the help."""

    MODELS = "models and rewards"
    DATA = "data"
    ROLLOUT = "rollout"
    EPISODES = "environments"
    TRAIN = "training"
    ADVANTAGE = "advantages"
    LOSS = "losses"
    KL = "KL to the reference"
    SHAPING = "reward shaping"
    FILTERING = "dynamic filtering"
    CORRECTION = "importance correction"
    OPTIMIZER = "optimizer"
    MEMORY = "precision and memory"
    LORA = "LoRA"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    LOGGER = "logger"
    LAYOUT = "layout of models over GPUs"
    VLLM = "vLLM"
    DEEPSPEED = "DeepSpeed"
    PREFERENCES = "preference training"

    def flag(self, default: Any, meaning: str, **about: Any) -> Any:
        """Return a dataclass field that is a flag; `about`: other fields of Flag."""
        return Flag(group=self, help=meaning, **about).field(default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Option):
    """What a flag means and which values it takes. Its flat spelling is its name."""

    group: Group
    unit: str = ""
    dotted: str | tuple[str, ...] = ()
    """Its spelling in OpenRLHF 0.11; several if one field stands for several flags there."""
    aliases: tuple[str, ...] = ()
    """Other flat spellings."""
    follows: str = ""
    """The flag whose flat spelling also sets this one, unless this one is given itself."""
    repeats: bool = False
    """It may be given several times: all its values count."""
    bare: str | None = None
    """The value of the flag if it is given without one; None: it needs a value."""
    choices: tuple[str, ...] = ()
    or_function: bool = False
    """FILE.py:NAME of a user's function is a value beside the choices."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other words for some of the choices."""
    called: Mapping[str, str] = field(default_factory=dict)
    """Names that others have for some of the choices: they are refused with the right one."""
    required: bool = False
    endless: bool = False
    """Infinity is allowed."""
    no_effect: str = ""
    """Reason why the flag changes nothing here; it is accepted with a warning that says so."""
    unsupported: str = ""
    """Reason why any value but the default is a fault: ignoring it would change the result."""

    @property
    def words(self) -> tuple[str, ...]:
        """What the value may be, for a person."""
        return (*self.choices, "FILE.py:NAME") if self.or_function else self.choices

    @property
    def dotted_spellings(self) -> tuple[str, ...]:
        return (self.dotted,) if isinstance(self.dotted, str) else self.dotted

    def problem(self, value: Any) -> str | None:
        """Return why `value` is out of range, in words; None if it is in range."""
        if isinstance(value, tuple):
            return next((said for part in value if (said := self.problem(part))), None)
        is_function = self.or_function and FUNCTION.fullmatch(value)
        if self.choices and value not in self.choices and not is_function:
            return f"must be one of {', '.join(self.words)}"
        if not isinstance(value, int | float):
            return None
        if math.isnan(value):
            return "must be a number"
        if math.isinf(value) and not self.endless:
            return "must be finite"
        return self.exceeded(value)


@dataclass(frozen=True, slots=True)
class _Scope:
    """How the flags of settings are spelt in the command that the settings are part of."""

    prefix: str
    dotted: str
    critic: bool

    def of(self, field_name: str, about: Flag) -> tuple[str, Flag]:
        """Return the flat spelling and the Flag as the command has them."""
        about = replace(about, dotted=tuple(self.dotted + one for one in about.dotted_spellings))
        if about.name:
            return about.name, about
        if self.critic:
            about = replace(about, help="the critic's", follows=field_name)
        return self.prefix + field_name, about


def composed(settings: type[T], *, prefix: str = "", dotted: str = "", critic: bool = False) -> T:
    """Return a dataclass field that holds settings, whose fields are flags of the command.

    `prefix` and `dotted` begin the spellings of flags that have no `name`. `critic`: each flag
    without a `name` is the critic's variant of the policy's flag, which sets both.
    """
    scope = _Scope(prefix, dotted, critic)
    made: T = field(default_factory=settings, metadata={"settings": scope})
    return made


Declared: TypeAlias = options.Declared[Flag]
"""A flag of a command. Its path has two names if it is in settings of the command."""


def once_for_each(function: F) -> F:
    """Return `function` with its results kept. mypy does not see that a class is hashable."""
    return cast(F, cache(function))


@once_for_each
def flags_of(config: type[Any]) -> Mapping[str, Declared]:
    """Return every flag of a command by its flat spelling."""
    found = {flag.name: flag for flag in declared_in(config, Flag)}
    kinds = get_type_hints(config)
    for own in fields(config):
        if scope := own.metadata.get("settings"):
            for part in declared_in(kinds[own.name], Flag):
                path = (own.name, *part.path)
                name, about = scope.of(part.path[0], part.about)
                found[name] = replace(part, name=name, path=path, about=about)
    return found


KEPT: Any = object()
"""In `shared`: the default stays."""


def shared(command: type[Any], name: str, default: Any = KEPT, **changes: Any) -> Any:
    """Return a field with a flag of another command, or of settings, by its flat spelling.

    `changes`: fields of Flag that differ here.
    """
    declared = flags_of(command)[name]
    about: Flag = replace(declared.about, **changes)
    return about.field(declared.default if default is KEPT else default)


def with_values(config: T, values: Mapping[tuple[str, ...], Any]) -> T:
    """Return a command with other values of the flags at these paths."""
    changed: dict[str, Any] = {path[0]: value for path, value in values.items() if len(path) == 1}
    for owner in dict.fromkeys(path[0] for path in values if len(path) == 2):
        inner = {path[1]: value for path, value in values.items() if path[0] == owner}
        changed[owner] = replace(getattr(config, owner), **inner)
    return replace(config, **changed)  # type: ignore[type-var]


def by_group(config: type[Any]) -> dict[str, list[Declared]]:
    """Return the flags of a command by concern, settings before other flags."""
    found: dict[str, list[Declared]] = {group: [] for group in Group}
    for flag in sorted(flags_of(config).values(), key=lambda flag: -len(flag.path)):
        found[flag.about.group].append(flag)
    return {group: flags for group, flags in found.items() if flags}
