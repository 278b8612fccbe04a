"""Command lines as frozen dataclasses: one declarative field a flag, all faults at once.

Torch-free, and free of every heavy import: `--help` must answer at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

OVER = "--"
"""A word of the command line: what follows it says a flag's value whatever stands before it. A
launcher puts there what it knows better than the one who wrote the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What a flag means and which values it takes; its type is its dataclass field's."""

    group: str
    help: str
    unit: str = ""
    dotted: str | tuple[str, ...] = ()
    """Its spelling in OpenRLHF 0.11; several where one field stands for several flags there."""
    aliases: tuple[str, ...] = ()
    """Other flat spellings."""
    follows: str = ""
    """The flag whose flat spelling sets this one too, where its own spellings are not given."""
    bare: str | None = None
    """The value that the flag without a value stands for; None: it needs one."""
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other words for some of the choices."""
    required: bool = False
    secret: bool = False
    """Its value is shown nowhere."""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    endless: bool = False
    """Whether it may be infinite."""
    no_effect: str = ""
    """Accepted, with a warning that gives this reason: it changes nothing that is learned."""
    unsupported: str = ""
    """A fault unless it has its default: without it something else would be learned."""

    @property
    def dotted_spellings(self) -> tuple[str, ...]:
        return (self.dotted,) if isinstance(self.dotted, str) else self.dotted

    def problem(self, value: Any) -> str | None:
        """Why `value` is out of range, in words; None where it is not."""
        if isinstance(value, tuple):
            return next((said for part in value if (said := self.problem(part))), None)
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        if not isinstance(value, int | float):
            return None
        if math.isnan(value):
            return "must be a number"
        if math.isinf(value) and not self.endless:
            return "must be finite"
        if self.at_least is not None and not value >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.above is not None and not value > self.above:
            return f"must be greater than {self.above:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most:g}"
        return None


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a command line, and what would be right."""

    flag: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        given = f" (given: {self.value})" if self.value else ""
        return f"{self.flag}: {self.problem}{given}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class MissingFile(Fault):
    """A file that a command line names, and that this machine does not have or cannot read now."""


class ConfigError(ValueError):
    """A command line that cannot be run; says every fault at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def flag(default: Any, **about: Any) -> Any:
    """A dataclass field that is a flag: its default and the fields of Flag."""
    declared = Flag(**about)
    return field(default=default, metadata={"flag": declared}, repr=not declared.secret)


def flags_of(config: type[Any]) -> dict[str, tuple[Field[Any], Flag]]:
    """Name → (field, flag) of a dataclass's fields that are made by `flag`."""
    return {f.name: (f, f.metadata["flag"]) for f in fields(config) if "flag" in f.metadata}


MODELS = "models and rewards"
DATA = "data"
ROLLOUT = "rollout"
TRAIN = "training"
MEMORY = "precision and memory"
LORA = "LoRA"
OPTIMISER = "optimiser"
ADVANTAGE = "advantages"
LOSS = "losses"
KL = "KL to the reference"
SHAPING = "reward shaping"
FILTERING = "dynamic filtering"
CORRECTION = "importance correction"
CHECKPOINTS = "checkpoints"
EVALUATION = "evaluation"
LOGGER = "logger"
LAYOUT = "layout of models over GPUs"
VLLM = "vLLM"
DEEPSPEED = "DeepSpeed"
PREFERENCES = "preference training"


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts by name. Raises ValueError for a text that is no such object."""

    text: str = "{}"
    DESCRIBED: ClassVar[str] = 'a JSON object such as {"v100": 1}, of positive numbers, no GPU, CPU'

    def __post_init__(self) -> None:
        for name, amount in self.amounts.items():
            counted = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not counted or amount <= 0 or name in ("", "GPU", "CPU", "memory"):
                raise ValueError(name)

    @property
    def amounts(self) -> dict[str, float]:
        read = json.loads(self.text)
        if not isinstance(read, dict):
            raise ValueError(self.text)
        return read

    def __str__(self) -> str:
        return self.text
