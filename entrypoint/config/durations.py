"""Settings that are a length of time: their parsers, their text, and bounds that others read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from contract.durations import duration as shown
from contract.options import Bounds, ParseError

DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|min|h|)")
SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
LONGEST_SECONDS = 365 * 24 * 3600.0
SHORTEST_SECONDS = 1.0
"""Of a duration that has no other bound: less means another unit."""
SHORTEST_HANG = 600.0
"""Seconds without a step that are no hang yet, however short the steps so far were."""


def as_setting(seconds: float) -> str:
    """Return seconds as a user would write them: 90s, 10m."""
    return f"{seconds / 60:g}m" if seconds % 60 == 0 else f"{seconds:g}s"


def seconds_of(raw: str) -> float | None:
    """Return the seconds of `90`, `90s`, `1.5m`, `10 min` or `2h`; None for another text."""
    match = DURATION.fullmatch(raw.lower())
    return float(match[1]) * SECONDS[match[2]] if match else None


def duration(bounds: Bounds) -> Callable[[str], float]:
    """Return the parser of a duration of `bounds.at_least` seconds; a second at least if None."""
    least = SHORTEST_SECONDS if bounds.at_least is None else bounds.at_least

    def parse(raw: str) -> float:
        seconds, remedy = seconds_of(raw), "give a duration with its unit, such as 90s, 10m or 2h"
        if seconds is None:
            raise ParseError("is not a duration", "give seconds, or one such as 90s, 10m or 2h")
        if seconds < least:
            short = f"is {shown(seconds)}, and must be at least {shown(least)}"
            raise ParseError(short, remedy)
        if seconds > LONGEST_SECONDS:
            raise ParseError("must be at most 365 days", remedy)
        return seconds

    return parse


def time_limit(raw: str) -> float:
    """Seconds for which a command waits or looks back, above zero."""
    if seconds_of(raw) == 0:
        raise ParseError("must be longer than 0 s", "give seconds, or one such as 90s, 10m or 2h")
    return duration(Bounds(at_least=0))(raw)


AT_ONCE = 0.0
NEVER = math.inf
SHORTEST_FAILOVER = 8.0
"""Seconds of silence after which a head counts as lost at all: what `auto` waits."""


def head_failover(raw: str) -> float:
    """Seconds that a lost head has to come back, before a worker takes its place."""
    named = {"auto": AT_ONCE, "off": NEVER}
    if (seconds := named.get(raw.lower())) is not None:
        return seconds
    right = f"give auto ({shown(SHORTEST_FAILOVER)}), off (never), or a duration such as 90s or 10m"
    if seconds_of(raw) is None:
        raise ParseError("is neither auto nor off, nor a duration", right)
    try:
        return duration(Bounds(at_least=SHORTEST_FAILOVER))(raw)
    except ParseError as error:
        raise ParseError(error.problem, right) from error
