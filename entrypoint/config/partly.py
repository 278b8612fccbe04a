"""Settings of which some have a fault: rules that need those are not judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from contract.options import ConfigError, Fault
from entrypoint.config.settings import Settings

AS_GIVEN = ("secrets", "variable")
"""Attributes that are right whatever has a fault."""


class UnusableError(Exception):
    """A rule has asked for a setting that has a fault of its own."""


class PartlyRead(Settings):
    """Settings of which some have a fault. To read one of those raises UnusableError."""

    __slots__ = ("plain", "unusable")
    plain: Settings
    unusable: frozenset[str]

    @classmethod
    def of(cls, plain: Settings, unusable: Iterable[str]) -> PartlyRead:
        """`unusable`: fields of `plain`."""
        made = cls(**{one.name: getattr(plain, one.name) for one in fields(plain)})
        object.__setattr__(made, "plain", plain)
        object.__setattr__(made, "unusable", frozenset(unusable))
        return made

    def __getattribute__(self, name: str) -> Any:
        get = object.__getattribute__
        if name in AS_GIVEN:
            return getattr(get(self, "plain"), name)
        if not name.startswith("_") and name in get(self, "unusable"):
            raise UnusableError(name)
        return get(self, name)


class SettingsError(ConfigError):
    """Faults of the settings; `settings` has the others, by which the job may be judged, too."""

    def __init__(self, faults: Sequence[Fault], settings: PartlyRead) -> None:
        super().__init__(faults)
        self.settings = settings


def judged(rules: Iterable[Iterator[Fault]]) -> Iterator[Fault]:
    """Yield the faults that each rule finds, as far as settings without a fault tell it."""
    for rule in rules:
        try:
            yield from rule
        except UnusableError:
            continue
