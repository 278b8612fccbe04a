"""Settings that are one of a few words, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from entrypoint.config import parsers as parse
from entrypoint.config.variables import ParseError

RECIPES = ("builtin", "command")
LATER_RECIPES = ("openrlhf", "verl", "search-r1", "trl")


class DebugRay(StrEnum):
    """Which of Ray's two debuggers is on."""

    OFF = "off"
    LEGACY = "legacy"
    POST_MORTEM = "post-mortem"


class PreflightMode(StrEnum):
    """What a failed check does: stop the node, say so and go on, or nothing as none is run."""

    STRICT = "strict"
    WARN = "warn"
    OFF = "off"


class ServiceOn(StrEnum):
    """Which nodes start a service that has a command."""

    HEAD = "head"
    EVERY = "every"


def debug_ray(raw: str) -> DebugRay:
    if raw.lower() in ("legacy", "post-mortem"):
        return DebugRay(raw.lower())
    try:
        return DebugRay.LEGACY if parse.boolean(raw) else DebugRay.OFF
    except ParseError:
        raise ParseError("is unknown", "give 0, 1 (the legacy debugger) or post-mortem") from None


def of_rays_variables(environ: Mapping[str, str]) -> DebugRay:
    """The debugger that Ray's own variables ask for. Ray wants an option beside `RAY_DEBUG`."""
    if environ.get("RAY_DEBUG") == "legacy":
        return DebugRay.LEGACY
    return DebugRay.POST_MORTEM if environ.get("RAY_DEBUG_POST_MORTEM") == "1" else DebugRay.OFF


def recipe(raw: str) -> str:
    name = raw.lower()
    if name in RECIPES:
        return name
    known = name in LATER_RECIPES
    problem = "is not in this version" if known else "is no recipe"
    raise ParseError(problem, f"give {parse.one_of(RECIPES)}")
