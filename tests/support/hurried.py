"""Settings with times shorter than a user may give, so that a test need not wait for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from entrypoint.config.durations import seconds_of
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings, declared


def hurried(environ: Mapping[str, str], job: Sequence[str] = ()) -> Settings:
    """Return the settings in `environ`, whose durations have no lower bound."""
    rest, short = dict(environ), dict[str, Any]()
    for field, one in declared().items():
        seconds = seconds_of(environ.get(one.name, "")) if one.kind is float else None
        if seconds is not None:
            short[field] = seconds
            del rest[one.name]
    return replace(read_settings(rest, job), **short)
